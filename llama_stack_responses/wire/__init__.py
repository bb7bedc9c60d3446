"""HTTP: `*_routes.py` have the routes, `answers.py` and `sse.py` the answers, `openapi.py` their description.

`request_bodies.py`, `request_cycle.py` and `route_admission.py` bound what a request and its answer hold. `websocket/`
has the WebSocket.
"""
