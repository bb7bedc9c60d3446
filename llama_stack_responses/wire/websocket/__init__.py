"""The WebSocket at `/v1/responses`.

`connection.py` has the handshake, the messages and the close codes; `session.py` is the session without HTTP, with the
requests in lanes, and steering.
"""
