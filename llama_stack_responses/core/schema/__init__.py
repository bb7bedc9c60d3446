"""Checks of what clients send.

`request.py` has the fields of a request, `items.py` its input, `declared_tools.py` its tools. `shapes.py` has the
checks that these are built from.
"""
