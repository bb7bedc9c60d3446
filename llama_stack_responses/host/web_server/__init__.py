"""Extensions of uvicorn: bounds on HTTP and WebSocket frames, and disconnects."""
