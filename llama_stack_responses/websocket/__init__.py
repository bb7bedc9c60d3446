"""A WebSocket session without HTTP: requests in lanes, and steering. `wire/websocket.py` has the connection."""
