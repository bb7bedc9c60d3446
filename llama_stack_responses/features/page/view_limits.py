"""Limits on what one view reads in addition to the responses that it shows."""

from __future__ import annotations

from typing import Final

ADDED_BYTES: Final = 4 * 2**20
"""Maximum size of added items of one kind: summaries (decompressed) and requests for approval. Others are left out."""

ADDED_ITEMS: Final = 64
"""Maximum number of added items of one kind."""
