"""The containers of this server: who owns them, what is in them, when they end, and their routes."""
