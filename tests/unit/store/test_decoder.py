"""Large stored values are decoded in threads that hold a bounded number of bytes together."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Final

import pytest

from llama_stack_responses.concurrency.offloading import INLINE_BYTES
from llama_stack_responses.store import codec
from llama_stack_responses.store.codec import TooLarge, UnreadableError
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.read_allowance import ReadAllowance

TOTAL: Final = 4 * 2**20
DENSE: Final = Random(1).randbytes(2**19).hex()
"""1 MiB of text that compresses to half of that."""
SPARSE: Final = "word " * 200_000
"""1 MB of text that compresses to a few kilobytes."""


class StoredValues:
    """Stored values that are read from a store.

    Attributes:
        reads: number of reads.
    """

    def __init__(self, *values: object) -> None:
        self._values = [codec.encode(value) for value in values]
        self.reads = 0

    async def read(self) -> Sequence[bytes]:
        """Return the encoded values after a moment."""
        self.reads += 1
        await asyncio.sleep(0)
        return self._values


def same(values: Sequence[bytes]) -> Sequence[bytes]:
    """Return the values of what `StoredValues.read` returned."""
    return values


@pytest.mark.parametrize("text", ["short", "x" * INLINE_BYTES, SPARSE, DENSE, SPARSE * 8, DENSE * 8])
async def test_value_of_any_size_is_decoded(text: str) -> None:
    assert await Decoder(TOTAL).decode([codec.encode([text]), codec.encode("another")]) == [[text], "another"]
    [(value, size)] = await Decoder(TOTAL).decode_until([codec.encode([text]), codec.encode("another")], 1)
    assert value == [text]
    assert size >= len(text)


async def test_small_value_is_decoded_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    parse = codec.parse

    def parsed(data: bytes, body: bytes) -> object:
        seen.append(threading.current_thread().name)
        return parse(data, body)

    monkeypatch.setattr(codec, "parse", parsed)
    await Decoder(TOTAL).decode([codec.encode("x" * 1_000)])
    assert seen == [threading.current_thread().name]
    await Decoder(TOTAL).decode([codec.encode(SPARSE)])
    assert seen[1] != threading.current_thread().name


@pytest.mark.parametrize("text", [SPARSE, DENSE])
async def test_concurrent_large_values_hold_no_more_than_the_budget(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = max_bytes = 0
    lock, parse = threading.Lock(), codec.parse

    def parsed(data: bytes, body: bytes) -> object:
        nonlocal held, max_bytes
        with lock:
            held += 2 * len(body)
            max_bytes = max(max_bytes, held)
        time.sleep(0.01)  # so that others could run at the same time
        value = parse(data, body)
        with lock:
            held -= 2 * len(body)
        return value

    monkeypatch.setattr(codec, "parse", parsed)
    decoder = Decoder(TOTAL)
    found = await asyncio.gather(*(decoder.decode([codec.encode([text])]) for _ in range(20)))
    assert found == [[[text]]] * 20
    assert 2 * len(text) <= max_bytes <= TOTAL + 2**10


async def test_work_that_waits_reads_its_records_again() -> None:
    decoder, sources = Decoder(TOTAL), [StoredValues(DENSE) for _ in range(10)]
    found = await asyncio.gather(*(decoder.read_until(source.read, same, 2**30) for source in sources))
    assert all(values[0][0] == DENSE for _, values in found)
    assert sources[0].reads == 1
    assert {source.reads for source in sources[3:]} == {2}


async def test_small_work_does_not_wait_for_large_work(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    unpack = codec.text

    def text(data: bytes, max_bytes: int) -> bytes:
        if len(data) > 2**18:
            assert goes_on.wait(60)
        return unpack(data, max_bytes)

    monkeypatch.setattr(codec, "text", text)
    decoder = Decoder(TOTAL)
    large = [asyncio.create_task(decoder.decode([codec.encode(DENSE)])) for _ in range(20)]
    try:
        async with asyncio.timeout(60):
            assert await decoder.decode([codec.encode(DENSE[: 2 * INLINE_BYTES])]) == [DENSE[: 2 * INLINE_BYTES]]
        assert not any(task.done() for task in large)
    finally:
        goes_on.set()
        await asyncio.gather(*large)


async def test_bytes_of_cancelled_work_are_held_until_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on, unpack = threading.Event(), threading.Event(), codec.text

    def text(data: bytes, max_bytes: int) -> bytes:
        began.set()
        assert goes_on.wait(60)
        return unpack(data, max_bytes)

    monkeypatch.setattr(codec, "text", text)
    decoder = Decoder(TOTAL)
    task = asyncio.create_task(decoder.decode([codec.encode(DENSE)]))
    assert await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_of_cancelled_work_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def text(*_: object) -> bytes:
        began.set()
        assert goes_on.wait(60)
        raise TooLarge

    monkeypatch.setattr(codec, "text", text)
    task = asyncio.create_task(Decoder(TOTAL).decode([codec.encode(DENSE)]))
    assert await asyncio.to_thread(began.wait, 60)
    task.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.messages == []


@pytest.mark.parametrize("text", [SPARSE, DENSE])
async def test_value_beyond_its_room_is_refused_before_it_is_decoded(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "parse", None)
    with pytest.raises(TooLarge):
        await Decoder(TOTAL).decode([codec.encode(text)], ReadAllowance(len(text) // 2))


async def test_damaged_large_value_is_unreadable() -> None:
    data = codec.encode(DENSE)
    with pytest.raises(UnreadableError):
        await Decoder(TOTAL).decode([data[: len(data) // 2] + b"\xff" * 1_000])


async def test_damaged_values_are_left_out_of_many() -> None:
    values = [codec.encode([number]) for number in range(20)]
    damaged = {3, 4, 19}
    given = [b"\xff" if number in damaged else value for number, value in enumerate(values)]
    expected = [None if number in damaged else [number] for number in range(20)]
    assert await Decoder(TOTAL).decode_readable(given) == expected
    assert await Decoder(TOTAL).decode_readable([]) == []
