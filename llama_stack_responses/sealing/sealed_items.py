"""Opens sealed items: reasoning and compaction items that a client sends, or that a history contains.

A seal holds compressed JSON. A few kilobytes may decompress to megabytes, and one request may repeat an item many
times. So items are opened in a thread, in steps, and the size of each step is counted in the event loop before the next
one. What was opened is kept for the request, so that no item is opened again in the event loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..concurrency.offloading import in_thread, in_thread_if_many
from ..core.errors import bad_request
from ..core.json_values import decoded_bytes
from ..core.owner import Owner
from ..core.types import Json
from ..items.compaction import Summary
from ..items.kinds.compaction import COMPACTION
from ..items.reasoning_segments import ReasoningSegment, segments_of
from .sealer import SEALED, Sealer, UnknownSecret, Unopened, unverified

type _Name = tuple[str, str]
"""An item's type and its seal."""

REASONING: Final = "reasoning"
"""The type of reasoning items."""
_KINDS: Final = (REASONING, COMPACTION)

_INLINE_CHARACTERS: Final = 2_048
"""Characters of all seals up to which the first step is done in the event loop."""

_PIECE_BYTES: Final = 65_536
"""Bytes that are decompressed at a time."""

_STEP_BYTES: Final = 262_144
"""Decompressed bytes after which a step ends."""


@dataclass(slots=True)
class Opened:
    """The content of the sealed items of a request.

    Attributes:
        content: the content by name; None if a seal does not open.
        sizes: the decompressed size in bytes, and 160 for each value, by name.
    """

    content: dict[_Name, list[ReasoningSegment] | Summary | None] = field(default_factory=dict)
    sizes: dict[_Name, int] = field(default_factory=dict)


class SealedItems:
    """Opens sealed items.

    Args:
        sealer: opens them.
        max_bytes: bytes that the items of one request may hold together, decompressed.

    Attributes:
        sealer: opens them.
    """

    def __init__(self, sealer: Sealer, max_bytes: int) -> None:
        self.sealer = sealer
        self._max_bytes = max_bytes

    async def open(
        self,
        items: Sequence[Json],
        owner: Owner,
        opened: Opened,
        *,
        verify: bool,
        excused: Collection[str] = (),
        param: str = "input",
        hold: Callable[[int], object] | None = None,
    ) -> None:
        """Open the sealed items among `items`.

        Args:
            items: items of a request or of a history.
            owner: the user for whom they must have been sealed.
            opened: receives the content of those that it does not have yet.
            verify: whether an item that is damaged, or was sealed for another user, is an error. The content of any
                other item that does not open is None, and does not count.
            excused: types of items to which `verify` does not apply.
            param: the field of the request that brings the items, for the error.
            hold: called with the number of decompressed bytes that are held from then on; it may raise.

        Raises:
            ApiError: 400, they hold too much, or one was not sealed for `owner`; 503, the secret of the store cannot be
                read; or what `hold` raises.
        """
        await self.sealer.load()
        sealed = await in_thread_if_many(lambda: _sealed(items), items)
        if not sealed:
            return
        verified = [kind for kind in _KINDS if verify and kind not in excused]
        steps = _in_steps(_sizes(sealed, self.sealer, owner, opened, verified))
        in_loop = sum(len(item[SEALED]) for item in sealed) <= _INLINE_CHARACTERS
        left, size = self._max_bytes, _STEP_BYTES
        while size >= _STEP_BYTES:
            size = next(steps) if in_loop else await in_thread(next, steps)
            in_loop = False
            left -= size
            if left < 0:
                raise self._too_large(param)
            if hold and size:
                hold(size)

    def _too_large(self, param: str) -> Exception:
        return bad_request(
            f"The encrypted content of the items has more than {self._max_bytes} bytes, the maximum of one request. "
            "Send fewer reasoning and compaction items.",
            param,
            "context_length_exceeded",
        )


def unreadable(items: Sequence[Json], opened: Opened) -> list[Json]:
    """Return the sealed items that `opened` has without content: they do not open."""
    names = {name for name, content in opened.content.items() if content is None}
    return [item for item in _sealed(items) if (item["type"], item[SEALED]) in names] if names else []


def unopened(items: Sequence[Json], opened: Opened) -> list[Json]:
    """Return the sealed items whose content `opened` does not have."""
    return [item for item in _sealed(items) if (item["type"], item[SEALED]) not in opened.content]


def _sealed(items: Sequence[Json]) -> list[Json]:
    return [item for item in items if item["type"] in _KINDS and item.get(SEALED)]


def _in_steps(sizes: Iterator[int]) -> Iterator[int]:
    """Yield the sums of sizes that together reach a step; the last sum is smaller."""
    sum_of_step = 0
    for size in sizes:
        sum_of_step += size
        if sum_of_step >= _STEP_BYTES:
            yield sum_of_step
            sum_of_step = 0
    yield sum_of_step


def _sizes(
    sealed: Sequence[Json], sealer: Sealer, owner: Owner, opened: Opened, verified: Collection[str]
) -> Iterator[int]:
    """Open the items, and yield the bytes of each piece before the next one is decompressed.

    An item that is repeated is opened once, but counts each time, as the model's input repeats it.

    Raises:
        ApiError: 400, an item of one of the types `verified` is damaged, or was sealed for another user.
    """
    for item in sealed:
        name = (item["type"], item[SEALED])
        if name in opened.content:
            yield opened.sizes.get(name, 0)
            continue
        try:
            data = sealer.open(item[SEALED], purpose=item["type"], owner=owner)
        except Unopened as reason:
            if item["type"] in verified and not isinstance(reason, UnknownSecret):
                raise unverified(item, reason) from None
            opened.content[name] = None
            continue
        text = bytearray()
        for piece in _decompressed(data):
            text += piece
            yield len(piece)
        opened.sizes[name] = size = decoded_bytes(text)
        yield size - len(text)
        opened.content[name] = segments_of(text) if item["type"] == REASONING else Summary.from_json(text)


def _decompressed(data: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    while data and not unpacker.eof:
        yield unpacker.decompress(data, _PIECE_BYTES)
        data = unpacker.unconsumed_tail
