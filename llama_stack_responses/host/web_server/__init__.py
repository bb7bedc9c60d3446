"""Extensions of uvicorn: bounds on HTTP and WebSocket frames, disconnects, and bodies compressed with zstd."""
