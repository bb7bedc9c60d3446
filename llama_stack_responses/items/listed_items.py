"""Input items as the API lists them, with an id and a status, which clients may omit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..core.errors import not_in_list
from ..core.exchanges import without_exchange
from ..core.ids import Seeded, new_seed
from ..core.types import Json
from .registry import ITEM_KINDS

Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list as OpenAI's API returns it.

    Attributes:
        data: the objects.
        has_more: whether more may follow.
        last: the id after which the next page begins, if it is not that of the last object.
    """

    data: list[Json]
    has_more: bool
    last: str | None = None


def page_after(objects: list[Json], after: str | None, limit: int) -> Page:
    """Return the page of at most `limit` objects that follow the one with the id `after`; the first page for None.

    Raises:
        ApiError: 400, no object has this id.
    """
    first = 0
    if after is not None:
        ids = [each["id"] for each in objects]
        if after not in ids:
            raise not_in_list(after)
        first = ids.index(after) + 1
    return Page(objects[first : first + limit], len(objects) > first + limit)


def with_ids(items: Iterable[Json]) -> list[Json]:
    """Return the items, each with its own id or a new one. The new ids share a seed."""
    seed = new_seed()
    return [
        item if "id" in item else {"id": id_of_seed(item, Seeded(seed, index)), **item}
        for index, item in enumerate(items)
    ]


def id_of_seed(item: Json, seeded: Seeded) -> str:
    """Return the id that `with_ids` makes of this seed and index."""
    kind = ITEM_KINDS.get(item["type"])
    return seeded.id(kind.form.id_prefix if kind else "item")


def listed(items: Iterable[Json]) -> list[Json]:
    """Return the items in the form of `openai.types.responses.ResponseItem`."""
    return [without_exchange(_whole(item)) for item in items]


def _whole(item: Json) -> Json:
    """Return the item with the fields that a client may omit, and a listed item has."""
    kind = ITEM_KINDS.get(item["type"])
    if kind is None or not kind.form.has_status:
        return item
    whole = {**item, "status": item.get("status", "completed")}
    return kind.whole(whole) if kind.whole else whole
