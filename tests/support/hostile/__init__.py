"""Attacks on a live stack, by source."""
