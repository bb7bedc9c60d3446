"""Events are parsed from bytes however they are cut, and are limited in size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.fetch.server_events import Event, EventParser, EventTooLarge, NameTooLong


def read(reader: EventParser, *chunks: bytes) -> list[Event]:
    return [event for chunk in chunks for event in reader.feed(chunk) if event]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [Event(b"message", b"a")]),
        (b"data:a\r\n\r\ndata: b\r\rdata: c\n\n", [Event(b"message", each) for each in (b"a", b"b", b"c")]),
        (b"event: endpoint\ndata: /m\n\n", [Event(b"endpoint", b"/m")]),
        (b"data: {\ndata: }\n\n", [Event(b"message", b"{ }")]),
        (b": ping\n\n\n\n:\n\n", []),
        (b"id: 7\ndata:\n\n", [Event(b"message", b"", b"7")]),
        (b"id: 7\0\ndata: a\n\n", [Event(b"message", b"a")]),
        (b"id: \xc3\xa4\ndata: a\n\n", [Event(b"message", b"a")]),
        (b"retry: 0\ndata: a\n\n", [Event(b"message", b"a", retry_ms=500)]),
        (b"retry: " + b"9" * 900 + b"\ndata: a\n\n", [Event(b"message", b"a", retry_ms=30_000)]),
        (b"retry: -1\ndata: a\n\n", [Event(b"message", b"a")]),
        (b"unknown: x\ndata\n\n", [Event(b"message", b"")]),
        (b"dataset: x\n:data: y\ndata : z\ndata:  a\n\n", [Event(b"message", b" a")]),
        (b"event\ndata: a\r\n\r\n", [Event(b"message", b"a")]),
        (b"event: x\n\ndata: a\n\n", [Event(b"message", b"a")]),
        (b"data: unfinished", []),
    ],
)
def test_stream_is_split_into_events(stream: bytes, events: list[Event]) -> None:
    assert read(EventParser(1_000), stream) == events
    assert read(EventParser(1_000), *(stream[at : at + 1] for at in range(len(stream)))) == events


@given(st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"\r\n", b"id: 1", b"x"])), st.integers(1, 7))
def test_arbitrary_cuts_do_not_change_events(pieces: list[bytes], size: int) -> None:
    stream = b"".join(pieces)
    cut = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert read(EventParser(10_000), *cut) == read(EventParser(10_000), stream)


def test_encoded_event_is_parsed_back() -> None:
    event = Event(b"message", b'{"a": 1}', b"7", 1_000)
    assert read(EventParser(1_000), event.encoded()) == [event]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 10, b"data\n" * 5, b":" * 50, b":\n" * 50])
def test_endless_event_fails_at_limit(chunk: bytes) -> None:
    reader = EventParser(1_000)
    fitting = 1_000 // len(chunk)
    read(reader, *[chunk] * fitting)
    with pytest.raises(EventTooLarge, match="larger than"):
        read(reader, chunk)


def test_limit_applies_to_each_event() -> None:
    reader = EventParser(100)
    assert len(read(reader, *[b"data: %s\n\n" % (b"x" * 80)] * 50)) == 50


@pytest.mark.parametrize("field", [b"id", b"event"])
def test_long_event_name_or_id_fails(field: bytes) -> None:
    with pytest.raises(NameTooLong):
        read(EventParser(10_000), field + b": " + b"x" * 2_000 + b"\n")


def test_line_of_many_chunks_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader scans only the new chunk and a complete line, never the beginning of an unfinished line."""
    count_read = 0

    class Chunk(bytes):
        def splitlines(self, keepends: bool = False) -> list[bytes]:
            nonlocal count_read
            count_read += len(self)
            return super().splitlines(keepends)

    reader = EventParser(1_000_000)
    for _ in range(5_000):
        assert list(reader.feed(Chunk(b"x" * 100))) == []
    assert list(reader.feed(Chunk(b"\n"))) == [None]
    assert count_read == 500_001
