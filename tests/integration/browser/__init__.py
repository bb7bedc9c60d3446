"""Tests that drive a browser. One process has all of them (`tests/support/parallel.py`)."""
