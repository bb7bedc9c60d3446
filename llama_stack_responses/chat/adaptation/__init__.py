"""What a chat request is changed to where a model server refuses it as it is.

`refusal.py` reads what the server said, `adaptation.py` is one kind of change, `registry.py` has the table of all.
"""
