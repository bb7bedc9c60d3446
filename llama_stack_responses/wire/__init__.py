"""HTTP: `*_routes.py` have the routes, `responses.py` and `sse.py` the answers, `openapi.py` their description.

`bodies.py`, `request_cycle.py` and `route_admission.py` bound what a request and its answer hold. `websocket.py`
has the WebSocket.
"""
