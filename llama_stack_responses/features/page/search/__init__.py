"""Search in the list of responses: what is typed, what is indexed, and what is shown of what was found."""
