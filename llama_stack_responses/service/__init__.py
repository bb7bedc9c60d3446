"""The API without HTTP: one module for each resource, such as `responses.py`, and for start and stop."""
