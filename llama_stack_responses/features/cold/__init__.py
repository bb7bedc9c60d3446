"""Moves idle responses to an object store, and brings them back when they are read."""
