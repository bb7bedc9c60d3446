"""Items of conversations and responses, and the rules that hold for all of them.

`kinds/` has one file for each kind of item, with all that the server asks of it; `kind.py` says what that is, and
`registry.py` has all kinds, those of the features too.
"""
