"""Deltas in, events and the response out.

`events.py` has every event, `assembler.py` decides when they are emitted, `call_kinds.py` has the form of each
kind of call. `replay.py` makes the events of a stored response again, `usage.py` adds up the tokens.
"""
