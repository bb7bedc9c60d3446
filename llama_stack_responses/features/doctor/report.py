"""What was found out about a model of a model server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from ...chat.adaptation.adaptation import Step
from ...chat.profile import entry_of
from ...core.types import Json

Outcome = Literal["works", "adapted", "lost", "unclear"]

NOTE_CHARACTERS: Final = 300
"""Maximum characters of a note, which may quote the server."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        name: the name of the check.
        title: what was checked, for people.
        outcome: it `works`; it works after the request is `adapted`; it is `lost` on this server; or that is `unclear`.
        note: what else is known; it may quote the server.
        changes: the changes that the request gets, in words.
    """

    name: str
    title: str
    outcome: Outcome
    note: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The findings about a model.

    Attributes:
        server: the URL of the model server, or the id of its provider.
        model: the name of the model there.
        findings: what each check found.
        profile: the entry of the setting `profiles` that saves the server from refusing anything; None for none.
        requests: the number of chat requests that were sent.
        seconds: the seconds that all took.
        first_token_seconds: the seconds until the first token of a short request.
        tokens_per_second: the tokens a second of one answer.
        concurrent_tokens_per_second: those of several answers at the same time, together.
        context_length: the tokens of the model's context, as the server says it.
        at: when it was made, in seconds since the epoch.
    """

    server: str
    model: str
    findings: tuple[Finding, ...] = ()
    profile: Json | None = None
    requests: int = 0
    seconds: float = 0.0
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    concurrent_tokens_per_second: float | None = None
    context_length: int | None = None
    at: float = 0.0

    def as_json(self) -> Json:
        """Return the report as JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Report:
        """Return the report in JSON; members of other versions are left out."""
        known = {each.name for each in fields(cls)}
        findings = tuple(Finding(**{**each, "changes": tuple(each["changes"])}) for each in value["findings"])
        return cls(**{name: each for name, each in value.items() if name in known} | {"findings": findings})


@dataclass(slots=True)
class Measured:
    """What is measured on the way."""

    requests: int = 0
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    concurrent_tokens_per_second: float | None = None
    context_length: int | None = None
    fields: Json = field(default_factory=dict)
    """Other fields of the profile."""


def profile_entry(match: str, steps: Iterable[Step], others: Json) -> Json | None:
    """Return the entry of `profiles` with these changes and other fields; None if there are none."""
    entry = {**entry_of(steps), **others}
    return {"match": match, **entry} if entry else None


def escaped(name: str) -> str:
    """Return the shell-style pattern that matches this name alone."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def rows_of(report: Report) -> list[tuple[str, str, str]]:
    """Return the title, the outcome and the notes of each finding."""
    return [
        (each.title, each.outcome, ": ".join(filter(None, (", ".join(each.changes), each.note))))
        for each in report.findings
    ]


def counts_of(report: Report) -> list[str]:
    """Return how many checks ended how."""
    outcomes = [each.outcome for each in report.findings]
    words = {"works": "work", "adapted": "adapted", "lost": "lost", "unclear": "unclear"}
    return [f"{outcomes.count(each)} {word}" for each, word in words.items() if each in outcomes]


def speeds_of(report: Report) -> list[str]:
    """Return what was measured."""
    first, alone, together = (
        report.first_token_seconds,
        report.tokens_per_second,
        report.concurrent_tokens_per_second,
    )
    said = [
        f"the first token after {first * 1000:.0f} ms" if first is not None else "",
        f"{alone:.0f} tokens a second" if alone else "",
        f"{together:.0f} in answers at the same time" if together else "",
    ]
    return [each for each in said if each]
