"""The API without HTTP: `responses.py`, `conversations.py`, `compaction.py`, `token_counting.py`, `readiness.py`."""
