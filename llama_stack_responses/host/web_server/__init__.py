"""Extensions of uvicorn: bounds on WebSocket frames, and request bodies that are compressed with zstd."""
