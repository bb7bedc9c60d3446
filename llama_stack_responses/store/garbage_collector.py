"""Garbage collection of content that is no longer referenced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ..core.errors import ApiError
from ..core.owner import Owner
from ..logs import get_logger
from . import codec
from .content_names import Hasher, tag_of_name
from .decoder import Decoder
from .history_nodes import Node, read_end
from .layout import further_pointer, pointers, read_pointer, reference, unsettled
from .read_allowance import PAGE_BYTES
from .records import Condition, Conflict, Delete, Empty, Op, Records, VersionIs, after_prefix, committed

logger = get_logger(__name__)

_BATCHES: Final = (8, 64)


class GarbageCollector:
    """Deletes nodes and big fields that have lost their last reference, and then their ancestors that have.

    Every commit that deletes a reference also writes a `g/` row for the content it referred to. The row is deleted in
    the commit that deletes that content, or that finds it still in use. After any interruption, `resume` continues;
    repeating the work is harmless.

    Args:
        page_bytes: number of bytes of a history that are read at a time.
    """

    def __init__(self, records: Records, decoder: Decoder, page_bytes: int = PAGE_BYTES) -> None:
        self._records = records
        self._decoder = decoder
        self._page_bytes = page_bytes

    async def run(self, keys: Iterable[str], owner: Owner) -> None:
        """Check content of `owner` for references, each with its `g/` row written. Descendants should be first."""
        dropped = set[str]()
        for key in keys:
            left: str | None = key
            size = _BATCHES[0]
            while left is not None and left not in dropped:
                left = await self._drop(left, owner, size, dropped)
                size = _BATCHES[1]

    async def try_run(self, keys: Iterable[str], owner: Owner) -> None:
        """Call `run` after the commit; `resume` repeats what fails now."""
        try:
            await self.run(keys, owner)
        except ApiError as error:
            logger.warning("could not delete unreferenced content, will retry: %s", error)

    async def resume(self, limit: int) -> None:
        """Finish at most `limit` interrupted runs."""
        for row, record in await self._records.range("g/", after_prefix("g/"), limit=limit):
            try:
                await self.run([row.removeprefix("g/")], Owner(*codec.decode(record.value)))
            except codec.UnreadableError as error:
                logger.error("could not read unreferenced content, leaving it: %s: %s", row, error)

    async def _drop(self, key: str, owner: Owner, size: int, dropped: set[str]) -> str | None:
        """Delete `key` and at most `size` nodes in all, if nothing refers to it; return the next key to check.

        The keys of the nodes are added to `dropped`.
        """
        kind, _, name = key.partition("/")
        prefix = reference(name, "")
        if needed := await self._records.range(prefix, after_prefix(prefix), limit=1):
            # If this reference is deleted meanwhile, the row stays for the commit that deletes it.
            still = VersionIs(needed[0][0], needed[0][1].version)
            return None if await committed(self._records, [Delete(f"g/{key}")], [still]) else key
        if kind == "b":
            ops: list[Op] = [Delete(key), Delete(f"g/{key}")]
            return None if await committed(self._records, ops, [Empty(prefix)]) else key
        chain = await read_end(self._records, self._decoder, name, size, self._page_bytes)
        if not chain:
            # Its ancestors are gone, or were never written.
            await committed(self._records, [Delete(key), Delete(f"g/{key}")], [Empty(prefix)])
            return None
        return await self._drop_chain(chain, owner, dropped)

    async def _drop_chain(self, chain: Sequence[tuple[str, Node]], owner: Owner, dropped: set[str]) -> str | None:
        """Delete the nodes of `chain`, youngest first, up to one in use; return the next key to check."""
        hasher = Hasher(owner, tag_of_name(chain[0][0]))
        ids = await self._ids(chain, hasher)
        first = f"n/{chain[0][0]}"
        while chain:
            parent = chain[-1][1].parent
            ops: list[Op] = [Delete(row) for name, _ in chain for row in (f"g/n/{name}", f"n/{name}", *ids[name])]
            ops += [Delete(reference(node.parent, name)) for name, node in chain if node.parent]
            if parent:
                ops.append(unsettled(f"n/{parent}", owner))
            try:
                await self._records.commit(ops, _unneeded(chain))
            except Conflict as conflict:
                chain = chain[: _first_needed(chain, conflict.failed)]
            else:
                dropped |= {f"n/{name}" for name, _ in chain}
                return f"n/{parent}" if parent else None
        return first

    async def _ids(self, chain: Sequence[tuple[str, Node]], hasher: Hasher) -> dict[str, list[str]]:
        """Return the pointers that lead to each node, by its name; an id may first lead to another, earlier node."""
        first = {name: list(pointers(hasher, f"n/{name}", node.items)) for name, node in chain}
        rows = {name: [*of_it, *(further_pointer(row, name) for row in of_it)] for name, of_it in first.items()}
        records = await self._records.get_many([row for of_node in rows.values() for row in of_node])
        target = {row: read_pointer(record.value)[0] for row, record in records.items()}
        return {name: [row for row in of_node if target.get(row) == f"n/{name}"] for name, of_node in rows.items()}


def _unneeded(chain: Sequence[tuple[str, Node]]) -> list[Condition]:
    """Return conditions: each node of `chain` is referenced by the node before it only, the first by none."""
    own = [None, *(reference(parent, name) for (name, _), (parent, _) in pairwise(chain))]
    return [Empty(reference(name, ""), but) for (name, _), but in zip(chain, own, strict=True)]


def _first_needed(chain: Sequence[tuple[str, Node]], failed: Sequence[Condition]) -> int:
    return min(index for index, condition in enumerate(_unneeded(chain)) if condition in failed)
