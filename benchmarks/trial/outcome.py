"""What a row has measured, and the table of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_HEADINGS: Final = ("row", "store", "requests", "failed", "lost", "doubled", "ready after", "what the log said")


@dataclass
class Outcome:
    """What happened in one row on one store.

    Attributes:
        row: the name of the row.
        store: the kind of the store.
        what: what was done, with its number.
        sent: number of requests.
        failed: the failed requests, by status and error.
        acknowledged: number of acknowledged responses that were looked up.
        lost: acknowledged responses that are gone or have not completed.
        doubled: requests that were stored twice, or that a client sent once and the model server got twice.
        ready_seconds: the longest time until all servers were ready again, from the end of the trouble; None if it
            does not apply.
        logged: the documented warnings and errors in the servers' logs, with their number.
        faults: what may not happen; empty if all is well.
        notes: what else was seen.
    """

    row: str
    store: str
    what: str = ""
    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    ready_seconds: float | None = None
    logged: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether nothing was lost or doubled, and nothing else happened that may not."""
        return not self.faults

    def judge(self, *, no_failure: bool = False) -> None:
        """Add the faults that apply to every row; with `no_failure`, also if a request failed."""
        if not self.acknowledged:
            self.faults.append("no response was acknowledged")
        if self.lost:
            self.faults.append(f"{self.lost} acknowledged responses were lost")
        if self.doubled:
            self.faults.append(f"{self.doubled} requests ran twice")
        if no_failure and self.failed:
            self.faults.append(f"{self.failed.total()} requests failed")


def heading() -> str:
    """Return the first two lines of a table in Markdown."""
    return _line(_HEADINGS) + _line(["---"] * 2 + ["---:"] + ["---"] + ["---:"] * 3 + ["---"])


def row(outcome: Outcome) -> str:
    """Return the outcome as a line of the table."""
    return _line(_cells(outcome))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _cells(outcome: Outcome) -> Sequence[str]:
    ready = "-" if outcome.ready_seconds is None else f"{outcome.ready_seconds:.1f} s"
    said = [f"`{line}` ({number})" for line, number in outcome.logged.most_common()]
    failed = [f"{number} times {reason.replace('|', '/')}" for reason, number in outcome.failed.most_common()] or ["0"]
    faults = [f"**FAULT: {fault}**" for fault in outcome.faults]
    return (
        f"{outcome.row}: {outcome.what}",
        outcome.store,
        f"{outcome.sent:,}" if outcome.sent else "-",
        "; ".join([*failed, *outcome.notes, *faults]),
        f"{outcome.lost} of {outcome.acknowledged:,}",
        str(outcome.doubled),
        ready,
        ", ".join(said) or "nothing",
    )
