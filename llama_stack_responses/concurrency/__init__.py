"""Tasks, threads and turns of the event loop."""
