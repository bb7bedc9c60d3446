"""A response as it was saved, assembled from its record and the content that is stored elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.exchanges import without_exchange
from ..core.owner import Owner
from ..core.types import Json
from ..stream.response import UNSENT
from ..stream.transcript import Mark
from .layout import Entry
from .records import Record


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was saved.

    Attributes:
        response: the response object.
        owner: the owner of the response.
        history: the name of the history after its output; None if that is empty.
        input: the name of the history after its input.
        version: the version of the record; it grows with each save.
        transcript: how its stream was cut into events; None if this was not recorded.
        size: the size of the records that hold it, as `codec.size` counts.
        timing: when its rounds, tool calls and events came; None if this was not recorded.
        recorded: the number of its recorded chat requests.
    """

    response: Json
    owner: Owner
    history: str | None
    input: str | None
    version: int
    transcript: Sequence[Mark] | None = None
    size: int = 0
    timing: Json | None = None
    recorded: int = 0


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """A response's record, its version, and its size as `codec.size` counts."""

    entry: Entry
    version: int
    size: int


def content_of(entry: Entry) -> Sequence[str]:
    """Return the keys of content that is stored outside the response's record."""
    keys = [f"b/{name}" for name in entry.fields.values()]
    return keys if entry.response["output"] or not entry.outputs else [*keys, f"n/{entry.history}"]


def assembled(
    source: FoundEntry, content: Mapping[str, tuple[Record, Any, int]], size: int
) -> Sequence[StoredResponse]:
    """Return the response; nothing if part of it is gone."""
    entry = source.entry
    if content.keys() < set(content_of(entry)):
        return ()
    response = _response(entry, {key: value for key, (_, value, _) in content.items()})
    stored = StoredResponse(
        response,
        entry.owner,
        entry.whole,
        entry.input,
        source.version,
        entry.transcript,
        size,
        entry.timing,
        entry.recorded,
    )
    return (stored,)


def _response(entry: Entry, content: Mapping[str, Any]) -> Json:
    fields = {field: content[f"b/{name}"] for field, name in entry.fields.items()}
    if f"n/{entry.history}" in content_of(entry):
        fields["output"] = content[f"n/{entry.history}"][-entry.outputs :]
    response = {**UNSENT, **entry.response, **fields}
    return response | {"output": [without_exchange(item) for item in response["output"]]}
