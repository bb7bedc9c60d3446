"""Split text with inline reasoning tags, which may be cut at any character."""

from __future__ import annotations

from .profile import InlineThinking


class ThinkTagSplitter:
    """Separates a streamed text into reasoning and answer: what is behind the first section of reasoning is the answer.

    It holds back at most one character less than a tag, and only while the end of the text could be the beginning of
    that tag.
    """

    def __init__(self, tags: InlineThinking) -> None:
        self._tags = tags
        self._inside = tags.starts_open
        self._buffered = ""
        self._at_start = True
        self._is_over = False

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return the pieces of `text` that are decided by now, each as (is reasoning, text)."""
        pieces: list[tuple[bool, str]] = []
        text = self._buffered + text
        start = 0
        while not self._is_over:
            tag = self._tags.close if self._inside else self._tags.open
            end = text.find(tag, start)
            if end < 0:
                break
            self._put(pieces, text[start:end])
            self._is_over = self._inside
            self._inside, self._at_start, start = not self._inside, True, end + len(tag)
        keep = 0 if self._is_over else _overlap(text, start, tag)
        self._buffered = text[len(text) - keep :]
        self._put(pieces, text[start : len(text) - keep])
        return pieces

    def end(self) -> list[tuple[bool, str]]:
        """Return the held-back text at the end."""
        pieces: list[tuple[bool, str]] = []
        rest, self._buffered = self._buffered, ""
        self._put(pieces, rest)
        return pieces

    def _put(self, pieces: list[tuple[bool, str]], text: str) -> None:
        if self._at_start:
            # Templates put line breaks around the tags; they belong to neither side.
            text = text.lstrip("\n")
        if text:
            self._at_start = False
            pieces.append((self._inside, text))


def _overlap(text: str, start: int, tag: str) -> int:
    """Return how many of the last characters of `text`, from `start` on, could begin `tag`."""
    longest = min(len(tag) - 1, len(text) - start)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
