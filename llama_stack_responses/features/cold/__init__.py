"""Keeps responses that have rested for long in an object store, and brings them back when they are read."""
