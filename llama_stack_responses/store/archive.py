"""Responses and the histories that they stand on.

Keys, where `of` is a hash of the owner, and a name is a hash of content and owner:

    r/<response>                   a response, without its output and its big fields
    n/<name>                       a node of a history (`nodes.py`)
    b/<name>                       a big field that many responses share: tools, instructions, text
    f/<name>/<source>              a reference to that node or big field, from a node or a response
    i/<of item id>                 the node that holds the item, and where in it
    l/<of>/<order>/<response>      an owner's responses in the order of their creation
    x/<bucket>/<of>                the owner has responses whose `order` begins with this bucket
    g/<key>                        this node or big field lost a reference and is yet to be looked at

A node or big field goes with the last reference to it, never before. Whoever drops a reference enters the `g/` row in
the same commit, so an interrupted clean-up is finished by the next sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..core.errors import ApiError, bad_request
from ..core.owner import Owner
from . import codec, nodes
from .nodes import Hasher, Node
from .reclaim import Reclaim
from .records import Conflict, Delete, Empty, Record, Records, after_prefix
from .saving import Saving, Stored

type Json = dict[str, Any]

_ATTEMPTS: Final = 16
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was saved.

    Attributes:
        response: the response object.
        owner: who made it.
        history: the name of the history after its output; None if that is empty.
        input: the name of the history after its input; None if that is empty.
        version: grows with each save of this response.
    """

    response: Json
    owner: Owner
    history: str | None
    input: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, and whether there is more behind it."""

    items: list[StoredResponse]
    has_more: bool


class Archive:
    """Keeps responses, each part of a conversation once, and forgets them when their time is up.

    Args:
        records: where everything goes.
        retention: seconds from a response's creation after which it is gone; None keeps it until it is deleted.
        clock: seconds since the epoch.

    Every method raises `ApiError` 503 when the store cannot serve it.
    """

    def __init__(
        self, records: Records, *, retention: float | None = 30 * 86_400.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._retention = retention
        self._clock = clock
        self._reclaim = Reclaim(records)

    async def save(
        self,
        response: Json,
        *,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        base_items: Sequence[Json] = (),
        version: int | None = None,
    ) -> int:
        """Store a response, or store it anew, in one commit.

        What is stored already, be it the tools or a history that the client sent again, is referred to.

        Args:
            response: the response object; its `output` items continue the history.
            owner: who made it.
            base: the name of the history that it continues.
            input_items: the request's own items, behind those of `base`.
            base_items: the items of `base`. Should it be gone by now, because somebody deleted the response that it
                belonged to, they are stored again; without them, this history would begin with `input_items`.
            version: what the stored response's version must still be; None for whatever it is.

        Returns:
            The version that was stored.

        Raises:
            Conflict: the stored response does not have `version`, or is gone.
        """
        saving = Saving(response, owner, base, input_items, base_items)
        for _ in range(_ATTEMPTS):
            plan = saving.plan(await self._records.get_many(saving.keys()), self._clock(), version)
            try:
                await self._records.commit(plan.ops, plan.conditions)
            except Conflict:
                continue
            await self._reclaim.run(plan.released)
            return plan.version
        raise _contended()

    async def load(self, response_id: str) -> StoredResponse | None:
        """The response; None if it is unknown, deleted or past its time."""
        return next(iter(await self._load([response_id])), None)

    async def list(
        self, owner: Owner, *, limit: int, after: str | None, order: Literal["asc", "desc"], model: str | None
    ) -> Page:
        """The owner's responses by time of creation: at most `limit`, behind the response `after`, of one `model`.

        Raises:
            ApiError: 400, if `after` is not there.
        """
        start, end = await self._bounds(owner, after, order)
        found: list[StoredResponse] = []
        rows: Sequence[tuple[str, Record]] = [("", Record(b"", 0))] * _PAGE
        while len(found) <= limit and len(rows) == _PAGE:
            rows = await self._records.range(start, end, limit=_PAGE, reverse=order == "desc")
            loaded = await self._load([key.rpartition("/")[2] for key, _ in rows])
            found += [stored for stored in loaded if model is None or stored.response.get("model") == model]
            if rows:
                start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)
        return Page(found[:limit], len(found) > limit)

    async def history(self, name: str | None) -> list[Json]:
        """All items from the beginning to `name`, oldest first.

        A history of n nodes (each response makes one or two) takes at most ceil(log4(n)) + 1 round trips.

        Raises:
            ApiError: 400 `previous_response_not_found`, if part of it is gone.
        """
        if name is None:
            return []
        chain = await nodes.read_chain(self._records, name)
        if chain is None:
            raise bad_request(
                "The history of the previous response is no longer stored.",
                "previous_response_id",
                "previous_response_not_found",
            )
        return [item for _, node in chain for item in node.items]

    async def find_item(self, owner: Owner, item_id: str) -> Json | None:
        """The stored item that has this id, if it is in a history of this owner."""
        key = f"i/{Hasher(owner.principal).item(item_id)}"
        pointer = (await self._records.get_many([key])).get(key)
        if pointer is None:
            return None
        name, index = nodes.read_pointer(pointer.value)
        record = (await self._records.get_many([f"n/{name}"])).get(f"n/{name}")
        return {**nodes.decode(record.value).items[index], "id": item_id} if record else None

    async def delete(self, response_id: str) -> bool:
        """Forget a response and all content that nothing else stands on; False if it is not there."""
        key = f"r/{response_id}"
        for _ in range(_ATTEMPTS):
            record = (await self._records.get_many([key])).get(key)
            if record is None:
                return False
            stored = Stored.decode(record)
            released = stored.references(response_id)
            try:
                await self._records.commit(stored.removal(response_id, released), [stored.unchanged(response_id)])
            except Conflict:
                continue
            await self._reclaim.run(released.values())
            return True
        raise _contended()

    async def sweep(self, *, limit: int = 100) -> int:
        """Delete at most `limit` responses whose time is up and finish what was left unfinished; the number deleted."""
        await self._reclaim.resume(limit)
        if self._retention is None:
            return 0
        deleted = 0
        oldest = _order_of(self._clock() - self._retention)
        for key, _ in await self._records.range("x/", f"x/{oldest[:4]}0", limit=limit):
            _, bucket, of = key.split("/")
            deleted += await self._sweep_bucket(f"l/{of}/", bucket, oldest, limit - deleted)
            if bucket < oldest[:4] and deleted < limit:
                await self._drop_bucket(key, f"l/{of}/{bucket}")
        return deleted
