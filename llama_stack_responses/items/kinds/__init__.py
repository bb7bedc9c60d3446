"""The kinds of items that every installation has: the form of each, and all else that the server asks of a kind."""
