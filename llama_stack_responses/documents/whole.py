"""Texts without halves of characters."""

from __future__ import annotations


def whole(text: str) -> str:
    """The text without halves of characters, of which PDFs are full and which are in no JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
