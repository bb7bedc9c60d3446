"""Items to chat requests, chat chunks to deltas, and what differs between models.

`inference.py` is the interface of model servers, which `host/inference.py` implements. `profile.py` has the families of
models, `messages.py` and `request.py` the chat request, `chunks.py` the answer.
"""
