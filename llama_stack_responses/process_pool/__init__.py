"""Processes for work on foreign content: bounded in time and memory, and shared fairly by the owners."""
