"""Moderation of input and output."""
