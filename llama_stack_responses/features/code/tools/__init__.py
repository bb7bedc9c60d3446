"""The tools that run in containers."""
