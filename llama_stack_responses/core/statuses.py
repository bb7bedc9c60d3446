"""The statuses of a response, and those with which a batch has ended."""

from __future__ import annotations

from typing import Final

UNFINISHED: Final = ("queued", "in_progress")
"""Statuses of a response that waits or runs."""

STATUSES: Final = (*UNFINISHED, "completed", "incomplete", "failed", "cancelled")
"""All statuses, as OpenAI's type has them."""

ENDED_BATCH: Final = frozenset({"failed", "completed", "expired", "cancelled"})
"""Statuses of a batch that has ended."""
