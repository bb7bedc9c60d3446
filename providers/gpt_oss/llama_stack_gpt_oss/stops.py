"""Truncation of a streamed text at the first of several stop strings."""

from collections.abc import Sequence


class StopWatch:
    """Passes text through, but holds back a suffix that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """Return the text that is certain. After a hit, return nothing."""
        if self.hit or not self._stops:
            return "" if self.hit else text
        text = self._held + text
        start = min((index for stop in self._stops if (index := text.find(stop)) >= 0), default=-1)
        if start >= 0:
            self.hit, self._held = True, ""
            return text[:start]
        keep = max(self._begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the held-back text, which did not become a stop string."""
        rest, self._held = self._held, ""
        return rest

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """Return the length of the longest suffix of the text that is a beginning of the stop string."""
        longest = min(len(stop) - 1, len(text))
        return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
