"""The life of a server: signals, the shutdown, and the tasks that run until then (`sweeper`, `secret_check`)."""
