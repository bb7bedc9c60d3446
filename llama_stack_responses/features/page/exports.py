"""What a list shows, as lines of a file: each response as an item and a sample, as OpenAI's evals take them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ...concurrency.offloading import in_thread_if_large
from ...core.owner import Owner
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...inputs.history import Hold
from ...items.listed_items import Order
from ...store.archive import Archive
from ...store.loaded_response import StoredResponse
from .lists import ListFilter, Lists

_TAKEN: Final = ("id", "model", "created_at", "status", "metadata", "instructions", "previous_response_id")
"""Fields of a response that its item has."""


class Exports:
    """Reads the responses of a user's list, whole.

    Args:
        archive: the stored responses.
        lists: reads the list.
    """

    def __init__(self, archive: Archive, lists: Lists) -> None:
        self._archive, self._lists = archive, lists

    async def page(
        self, owner: Owner, wanted: ListFilter, after: str | None, limit: int, order: Order, hold: Hold | None = None
    ) -> Json:
        """Return the lines of a page of the owner's list; those of unfinished and refused ones are left out.

        Raises:
            ApiError: 400, `after` is not a cursor.
        """
        page = await self._lists.page(owner, wanted, after, limit, order)
        data: list[Json] = []
        for row in page["data"]:
            if row["status"] in UNFINISHED or not row["id"].startswith("resp_"):
                continue
            stored = await self._archive.load(row["id"], hold)
            if stored is not None and stored.owner.identity == owner.identity:
                [inputs] = await self._archive.own_inputs([stored], hold)
                line = partial(line_of, stored, inputs, row["score"])
                data.append(await in_thread_if_large(line, stored.response, inputs))
        return {"object": "list", "data": data, "has_more": page["has_more"], "next": page["next"]}


def line_of(stored: StoredResponse, inputs: Sequence[Json], score: Json | None) -> Json:
    """Return the line of a response: the question, the score and note, and the answer."""
    response = stored.response
    item = {name: response.get(name) for name in _TAKEN}
    sample = {
        "model": response["model"],
        "output_text": _said(response["output"]),
        "output": response["output"],
        "usage": response.get("usage"),
        "error": response.get("error"),
    }
    judged = {"score": score and score["score"], "note": score["note"] if score else ""}
    return {"item": {**item, "input": list(inputs), **judged}, "sample": sample}


def _said(output: Sequence[Json]) -> str:
    parts = (part for item in output if item["type"] == "message" for part in item.get("content") or ())
    return "".join(part["text"] for part in parts if part.get("type") == "output_text")
