"""The fields that many kinds of items have."""

from __future__ import annotations

from typing import Final

from .shapes import one_of, record, string, tagged

ID: Final = string(1, 512)
OWN_ID: Final = string(0, 512)
"""Clients whose types require an id send an empty one for an item that has none."""
NAME: Final = string(1, 512)
TEXT: Final = string()
STATUS: Final = one_of("in_progress", "completed", "incomplete")
CALLER: Final = tagged("caller", {"direct": record({}), "program": record({"caller_id": ID}, "caller_id")})
