"""Durable batches: each line of an input file becomes a background job of the lowest class."""
