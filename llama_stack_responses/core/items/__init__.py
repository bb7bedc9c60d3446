"""The kinds of items: the form of each in the output and in events, and all else that the server asks of a kind."""
