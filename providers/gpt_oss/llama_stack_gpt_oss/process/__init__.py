"""The engine's own process, and its protocol: JSON lines over a Unix socket."""
