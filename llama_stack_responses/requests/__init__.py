"""Checks of what clients send.

`request.py` has the fields of a request, `input_items.py` its input, `declared_tools.py` its tools.
`core/shapes.py` has the checks that these are built from.
"""
