"""The engine in a process of its own, and the way to it: JSON lines over a Unix socket."""
