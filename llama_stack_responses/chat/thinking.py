"""Split text with inline reasoning tags, which may be cut at any character."""

from __future__ import annotations

from .profile import InlineThinking


class ThinkingSplitter:
    """Separates a streamed text into reasoning and answer.

    It holds back at most one character less than a tag, and only while the end of the text could be the beginning of
    that tag.
    """

    def __init__(self, tags: InlineThinking) -> None:
        self._tags = tags
        self._inside = tags.starts_open
        self._held = ""
        self._at_start = True

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return the pieces of `text` that are decided by now, each as (is reasoning, text)."""
        pieces: list[tuple[bool, str]] = []
        rest = self._held + text
        while True:
            tag = self._tags.close if self._inside else self._tags.open
            before, found, after = rest.partition(tag)
            if not found:
                break
            self._put(pieces, before)
            self._inside, self._at_start, rest = not self._inside, True, after
        keep = _overlap(rest, tag)
        self._held = rest[len(rest) - keep :]
        self._put(pieces, rest[: len(rest) - keep])
        return pieces

    def end(self) -> list[tuple[bool, str]]:
        """Return what was held back when the text ended."""
        pieces: list[tuple[bool, str]] = []
        rest, self._held = self._held, ""
        self._put(pieces, rest)
        return pieces

    def _put(self, pieces: list[tuple[bool, str]], text: str) -> None:
        if self._at_start:
            # Templates put line breaks around the tags; they belong to neither side.
            text = text.lstrip("\n")
        if text:
            self._at_start = False
            pieces.append((self._inside, text))


def _overlap(text: str, tag: str) -> int:
    """Return how many of the last characters of `text` could begin `tag`."""
    longest = min(len(tag) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
