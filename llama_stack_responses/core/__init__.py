"""Values without I/O, which all layers above share.

`schema/` checks requests, `stream/` turns deltas into events and the response. `errors.py` has the API's errors,
`charsets.py` the accepted charsets.
"""
