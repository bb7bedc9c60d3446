"""Signed, expiring links with which anyone reads one response without signing in."""
