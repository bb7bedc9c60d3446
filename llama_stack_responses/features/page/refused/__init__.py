"""The requests for responses that were refused: small rows of which the page has a list."""
