"""Decode stored values within limits, large ones outside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from ..core.json_values import is_large
from . import codec
from .codec import TooLarge

INLINE: Final = 32_768
"""Bytes that the event loop encodes or decodes at a time; more is left to a thread."""

PAGE_BYTES: Final = 8 * 2**20
"""Bytes with which a page of a list ends, or one step of reading in steps."""

type _Text = tuple[bytes, bytes, int]
"""The encoded value, the JSON that it holds, and its size."""


class Room:
    """A limit on what one piece of work may still read from the store.

    Args:
        most: bytes, as `codec.size` counts them; None for no limit.
        hold: is called with the number of bytes that were read, or are about to be decoded; it may raise.
    """

    def __init__(self, most: int | None = None, hold: Callable[[int], object] | None = None) -> None:
        self.left = most
        self._hold = hold
        self._encoded = 0

    @property
    def past(self) -> int | None:
        """The least number of bytes that exceeds the limit."""
        return None if self.left is None else self.left + 1

    def check(self, size: int) -> None:
        """Raise `TooLarge` if this many bytes exceed the limit."""
        if self.left is not None and size > self.left:
            raise TooLarge

    def hold(self, size: int) -> None:
        """Count encoded values of this many bytes as held until `take` counts what they hold; raise what `hold` raises.

        Values wait for a thread before they are decoded.
        """
        if self._hold:
            self._hold(size)
            self._encoded += size

    def take(self, size: int) -> None:
        """Count this many bytes, which are within the limit, as read; raise what `hold` raises."""
        if self._hold:
            self._hold(max(0, size - self._encoded))
            self._encoded = max(0, self._encoded - size)
        if self.left is not None:
            self.left -= size


async def decoded(values: Sequence[bytes], room: Room | None = None) -> list[Any]:
    """Decode the values. The limit is checked on the decompressed values, before they are decoded.

    Raises:
        TooLarge: they exceed `room`.
        UnreadableError: one is damaged, or its format is not supported.
    """
    room = room or Room()
    room.hold(sum(map(len, values)))
    texts = await _unpacked(values, room.left)
    room.take(sum(size for _, _, size in texts))
    return await _parsed(texts)


async def decoded_until(values: Sequence[bytes], most: int, room: Room | None = None) -> list[tuple[Any, int]]:
    """Decode values until they reach `most` bytes, which `room` counts as held; return each with its size."""
    room = room or Room()
    room.hold(sum(map(len, values)))
    texts = await _unpacked(values, most, ends=True)
    room.take(sum(size for _, _, size in texts))
    return list(zip(await _parsed(texts), [size for _, _, size in texts], strict=True))


async def computed[Result](call: Callable[[], Result], *of: Any) -> Result:
    """Return the result of a call on these JSON values; run it in a thread if they are large."""
    return await asyncio.to_thread(call) if is_large(of, INLINE) else call()


async def _unpacked(values: Sequence[bytes], most: int | None, *, ends: bool = False) -> list[_Text]:
    if sum(map(len, values)) <= INLINE:
        try:
            return list(_texts(values, INLINE if most is None else min(INLINE, most), ends=False))
        except TooLarge:
            pass  # too large for the event loop, or for the limit
    return await asyncio.to_thread(lambda: _taking_turns(_texts(values, most, ends=ends)))


def _texts(values: Sequence[bytes], most: int | None, *, ends: bool) -> Iterator[_Text]:
    """Decompress the values.

    Args:
        most: maximum size of all values in bytes.
        ends: stop after the value that reaches `most`, instead of raising.

    Raises:
        TooLarge: they have more than `most` bytes, and `ends` is False.
    """
    total = 0
    for data in values:
        text = codec.whole_text(data) if most is None or ends else codec.text(data, most - total)
        size = codec.size(data, text)
        total += size
        if most is not None and total > most and not ends:
            raise TooLarge
        yield data, text, size
        if most is not None and total >= most and ends:
            return


async def _parsed(texts: Sequence[_Text]) -> list[Any]:
    parsed = (codec.parse(data, text) for data, text, _ in texts)
    if sum(size for _, _, size in texts) <= INLINE:
        return list(parsed)
    return await asyncio.to_thread(_taking_turns, parsed)


def _taking_turns[Value](values: Iterable[Value]) -> list[Value]:
    """Return all values, from a thread that yields the interpreter lock after each.

    Otherwise the event loop would repeatedly wait for it, up to the switch interval of five milliseconds.
    """
    made = []
    for value in values:
        made.append(value)
        time.sleep(0)
    return made
