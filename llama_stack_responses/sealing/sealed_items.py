"""Checks of sealed items: reasoning and compaction items that a client sends, or that a history contains.

A seal holds compressed JSON. A few kilobytes may decompress to megabytes, and one request may repeat an item many
times, so the sizes are counted, in pieces, before any item is decoded.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ..core.errors import bad_request
from ..core.owner import Owner
from ..core.schema.items import COMPACTION
from .sealer import SEALED, Sealer, Unopened, unverified

Json = dict[str, Any]

_KINDS: Final = ("reasoning", COMPACTION)

_IN_LOOP: Final = 2_048
"""Characters of all seals up to which they are checked in the event loop. DEFLATE expands at most 1,032-fold."""

_PIECE: Final = 65_536
"""Bytes that are decompressed at a time."""


class SealedItems:
    """Checks sealed items.

    Args:
        sealer: opens them.
        most: bytes that the items of one request may hold together, decompressed.
    """

    def __init__(self, sealer: Sealer, most: int) -> None:
        self._sealer = sealer
        self._most = most

    async def check(self, items: Sequence[Json], owner: Owner, *, verify: bool, param: str = "input") -> None:
        """Check the sealed items among `items`.

        Args:
            verify: whether an item that does not open is an error; it is left out of the count otherwise.
            param: the field of the request that brings the items, for the error.

        Raises:
            ApiError: 400, they hold too much, or one was not sealed for `owner`.
        """
        sealed = [item for item in items if item["type"] in _KINDS and item.get(SEALED)]
        if not sealed:
            return
        check = partial(_check, sealed, self._sealer, owner, self._most, verify=verify, param=param)
        if sum(len(item[SEALED]) for item in sealed) <= _IN_LOOP:
            check()
        else:
            await asyncio.to_thread(check)


def _check(sealed: Sequence[Json], sealer: Sealer, owner: Owner, most: int, *, verify: bool, param: str) -> None:
    left = most
    for item in sealed:
        try:
            data = sealer.open(item[SEALED], purpose=item["type"], owner=owner)
        except Unopened as reason:
            if verify:
                raise unverified(item, reason) from None
            continue
        left -= _size(data, left)
        if left < 0:
            raise bad_request(
                f"The encrypted content of the items holds more than {most} bytes, which is the most that one request "
                "can bring. Send fewer reasoning and compaction items.",
                param,
                "context_length_exceeded",
            )


def _size(data: bytes, most: int) -> int:
    """Return the decompressed size; any number above `most` if it is larger."""
    unpacker = zlib.decompressobj()
    size = 0
    while data and size <= most and not unpacker.eof:
        size += len(unpacker.decompress(data, _PIECE))
        data = unpacker.unconsumed_tail
    return size
