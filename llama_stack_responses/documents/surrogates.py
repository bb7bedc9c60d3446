"""Removal of incomplete surrogate pairs."""

from __future__ import annotations


def without_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced: they are common in PDFs and not allowed in JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
