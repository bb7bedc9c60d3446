"""Attacks on a live stack, by where they come from."""
