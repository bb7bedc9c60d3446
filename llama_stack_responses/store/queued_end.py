"""The end of a response that was queued and never ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.types import Json
from ..stream.transcript import Mark
from .ends import Ended
from .list_rows import list_row
from .loaded_response import FoundEntry
from .records import Op, Put, VersionIs


@dataclass(frozen=True, slots=True)
class QueuedEnd:
    """The end of a response that was queued and never ran: its history ends with its input.

    Attributes:
        found: its record while it was queued.
        response: the response in its final state, without output.
        transcript: how its stream was cut into events.
        timing: when its events came.
        is_small: whether the event loop may encode it.
    """

    found: FoundEntry
    response: Json
    transcript: Sequence[Mark]
    timing: Json | None
    is_small: bool

    @property
    def unchanged(self) -> VersionIs:
        """The condition that it is still queued."""
        return VersionIs(f"r/{self.response['id']}", self.found.version)

    def ended(self, at: float) -> Ended:
        """Return the end, at a time in seconds since the epoch."""
        return Ended(self.response, self.found.entry.owner, self.timing, at)

    def ops(self) -> list[Op]:
        """Return the ops that write it: the response's record and its row in the owner's list."""
        old = self.found.entry
        new = replace(
            old,
            response={**self.response, **dict.fromkeys(old.fields)},
            transcript=self.transcript,
            words=None,
            answers=None,
            timing=self.timing,
        )
        row = list_row(self.response, old.words or "", self.timing, old.answers or ())
        return [Put(f"r/{old.id}", new.encode(small=self.is_small)), Put(new.listed, row)]
