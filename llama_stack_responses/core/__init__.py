"""Values without I/O, which all other folders share. `errors.py` has the API's errors, `shapes.py` builds checks."""
