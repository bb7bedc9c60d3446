"""Foreground responses that are under way, as the store knows them: `v/<response>`, written by their worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.owner import Owner
from . import codec
from .records import Records, VersionIs

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Vouched:
    """A foreground response that is made, or whose worker died and is not yet known to be dead.

    Attributes:
        response: the response object as its `response.created` event had it, less very large fields.
        owner: whose it is.
        row: holds for as long as it is under way.
    """

    response: Json
    owner: Owner
    row: VersionIs


async def find_vouched(records: Records, response_id: str) -> Vouched | None:
    """The foreground response; None if there is none that is under way: one that has ended is stored."""
    key = f"v/{response_id}"
    record = (await records.get_many([key])).get(key)
    if record is None:
        return None
    known = codec.decode(record.value)
    return Vouched(known["response"], Owner(*known["owner"]), VersionIs(key, record.version))
