"""Signed webhooks: tells the users' own servers that their background responses have ended."""
