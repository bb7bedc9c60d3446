"""Running foreground responses as the store knows them: `v/<response>`, written by their worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.owner import Owner
from ..core.types import Json
from .decoder import Decoder
from .records import Records, VersionIs


@dataclass(frozen=True, slots=True)
class RunningResponse:
    """A foreground response that is running, or whose worker died and whose lease has not yet been found expired.

    Attributes:
        response: the response object of its `response.created` event, without very large fields.
        owner: the owner of the response.
        row: the condition that holds as long as it is running.
        input_items: its own input; empty if it is large.
        worker: the worker that runs it.
    """

    response: Json
    owner: Owner
    row: VersionIs
    input_items: Sequence[Json]
    worker: str


async def find_running(records: Records, decoder: Decoder, response_id: str) -> RunningResponse | None:
    """Return the foreground response; None if it is not running. One that has ended is stored."""
    key = f"v/{response_id}"
    record = (await records.get_many([key])).get(key)
    if record is None:
        return None
    [known] = await decoder.decode([record.value])
    row = VersionIs(key, record.version)
    return RunningResponse(known["response"], Owner(*known["owner"]), row, known["input_items"], known["worker"])
