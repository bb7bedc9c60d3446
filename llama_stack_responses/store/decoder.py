"""Decode stored values within limits, large ones outside the event loop.

Large values are decoded in threads. All of them together hold a bounded number of bytes: the JSON, and the values that
are built from it. Work that waits holds nothing, and reads its records again when it is admitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..concurrency.fair_budget import FairBudget
from ..concurrency.offloading import INLINE_BYTES, in_thread_until_done, list_yielding_lock
from . import codec
from .codec import MAX_VALUE_BYTES, TooLarge, UnreadableError
from .read_allowance import ReadAllowance

DECODING_BYTES: Final = 48 * 2**20

_SMALL_BYTES: Final = 2**20
"""Bytes of a small value, which does not wait for large ones."""

_SMALL_DIVISOR: Final = 6
"""The ratio of the budget of large values to that of small ones."""

_ASSUMED_RATIO: Final = 4
"""Assumed ratio of the memory that decoding takes to the stored bytes."""

_GROWTH: Final = 8
"""Factor by which the assumption grows when it was too low. Decompression stops there, and is repeated."""

type _Text = tuple[bytes, bytes, int]
"""The encoded value, the JSON that it holds, and its size."""


class Decoder:
    """Decodes the stored values of one process.

    Args:
        total: bytes that the large values that are being decoded may take together, with their JSON. A value that takes
            more is decoded alone.
    """

    def __init__(self, total: int = DECODING_BYTES) -> None:
        self._large = FairBudget(total)
        self._small = FairBudget(max(_SMALL_BYTES, total // _SMALL_DIVISOR))

    async def decode(self, values: Sequence[bytes], allowance: ReadAllowance | None = None) -> list[Any]:
        """Decode the values. The limit is checked on the decompressed values, before they are decoded.

        Raises:
            TooLarge: they exceed `allowance`.
            UnreadableError: one is damaged, or its format is not supported.
        """
        allowance = allowance or ReadAllowance()
        allowance.hold(sum(map(len, values)))
        _, decoded = await self._decoded_of(
            partial(_given, values), _same, _Bound(allowance.left, ends=False), allowance
        )
        return [value for value, _ in decoded]

    async def decode_readable(self, values: Sequence[bytes]) -> list[Any]:
        """Decode the values; damaged ones are None."""
        try:
            return await self.decode(values)
        except UnreadableError:
            if len(values) == 1:
                return [None]
        half = len(values) // 2
        return await self.decode_readable(values[:half]) + await self.decode_readable(values[half:])

    async def decode_until(
        self, values: Sequence[bytes], max_bytes: int, allowance: ReadAllowance | None = None
    ) -> list[tuple[Any, int]]:
        """Decode values until they reach `max_bytes`, which `allowance` counts as held; return each with its size."""
        allowance = allowance or ReadAllowance()
        allowance.hold(sum(map(len, values)))
        _, decoded = await self._decoded_of(partial(_given, values), _same, _Bound(max_bytes, ends=True), allowance)
        return decoded

    async def read_until[Found](
        self,
        read: Callable[[], Awaitable[Found]],
        values_of: Callable[[Found], Sequence[bytes]],
        max_bytes: int,
        hold: Callable[[int], object] | None = None,
    ) -> tuple[Found, list[tuple[Any, int]]]:
        """Read records, and decode values of them until they reach `max_bytes`.

        Args:
            read: reads the records. It is called again if large ones had to wait until they could be decoded.
            values_of: returns their values.
            hold: called with the bytes of the values before they are decoded; it may raise.

        Returns:
            What `read` returned, and the decoded values, each with its size.
        """
        return await self._decoded_of(read, values_of, _Bound(max_bytes, ends=True), ReadAllowance(None, hold))

    async def _decoded_of[Found](
        self,
        read: Callable[[], Awaitable[Found]],
        values_of: Callable[[Found], Sequence[bytes]],
        bound: _Bound,
        allowance: ReadAllowance,
    ) -> tuple[Found, list[tuple[Any, int]]]:
        reads = [await read()]
        need = sum(map(len, values_of(reads[0]))) * _ASSUMED_RATIO
        if need <= INLINE_BYTES * _ASSUMED_RATIO:
            try:
                texts = list(_texts(values_of(reads[0]), bound.inline(), None))
            except TooLarge:
                pass  # too large for the event loop, or for the limit
            else:
                return reads[0], await _parsed(texts, allowance)
        while True:
            budget = self._budget(need)
            if not budget.has_room(need):
                reads.clear()  # work that waits holds no records
            async with budget.hold(need):
                if not reads:
                    reads.append(await read())
                unpacked = _texts(values_of(reads[0]), bound, need if need < budget.total else None)
                try:
                    texts = await in_thread_until_done(partial(list_yielding_lock, unpacked))
                    return reads[0], await _parsed(texts, allowance)
                except _NeedsMore:
                    need *= _GROWTH

    def _budget(self, need: int) -> FairBudget:
        """Return the budget for values that take this many bytes."""
        return self._small if need <= _SMALL_BYTES else self._large


async def _given(values: Sequence[bytes]) -> Sequence[bytes]:
    return values


def _same(values: Sequence[bytes]) -> Sequence[bytes]:
    return values


@dataclass(frozen=True, slots=True)
class _Bound:
    """The limit of a decoding.

    Attributes:
        max_bytes: maximum size of all values in bytes; None for no limit.
        ends: stop after the value that reaches `max_bytes`, instead of raising.
    """

    max_bytes: int | None
    ends: bool

    def inline(self) -> _Bound:
        """Return the limit for the event loop, which raises beyond `INLINE_BYTES` bytes."""
        return _Bound(INLINE_BYTES if self.max_bytes is None else min(INLINE_BYTES, self.max_bytes), ends=False)

    def of_text(self, taken: int) -> int:
        """Return the maximum size of the next value's JSON, after values of `taken` bytes."""
        return MAX_VALUE_BYTES if self.max_bytes is None or self.ends else self.max_bytes - taken


class _NeedsMore(Exception):  # noqa: N818 - an answer, as `TooLarge` is
    """The values take more memory than was assumed."""


def _texts(values: Sequence[bytes], bound: _Bound, need: int | None) -> Iterator[_Text]:
    """Decompress the values.

    Args:
        need: bytes that the values may take, with their JSON; None for no limit.

    Raises:
        TooLarge: they exceed `bound`.
        _NeedsMore: they exceed `need`.
    """
    total = held = 0
    for data in values:
        text = _text(data, bound.of_text(total), None if need is None else need - held)
        size = codec.size(data, text)
        total += size
        held += size + len(text)
        if bound.max_bytes is not None and total > bound.max_bytes and not bound.ends:
            raise TooLarge
        if need is not None and held > need:
            raise _NeedsMore
        yield data, text, size
        if bound.max_bytes is not None and total >= bound.max_bytes and bound.ends:
            return


def _text(data: bytes, max_bytes: int, need: int | None) -> bytes:
    try:
        return codec.text(data, max_bytes if need is None else min(max_bytes, need))
    except TooLarge as error:
        if need is not None and need < max_bytes:
            raise _NeedsMore from error
        if max_bytes >= MAX_VALUE_BYTES:
            raise UnreadableError(f"A stored record is damaged: it holds more than {max_bytes} bytes.") from error
        raise


async def _parsed(texts: Sequence[_Text], allowance: ReadAllowance) -> list[tuple[Any, int]]:
    sizes = [size for _, _, size in texts]
    allowance.spend(sum(sizes))
    parsed = (codec.parse(data, text) for data, text, _ in texts)
    values = (
        list(parsed) if sum(sizes) <= INLINE_BYTES else await in_thread_until_done(partial(list_yielding_lock, parsed))
    )
    return list(zip(values, sizes, strict=True))
