"""Frames are the same wherever the network cuts the bytes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_openai_chat.frames import FrameSplitter

LINES = st.one_of(
    st.binary(max_size=12).map(lambda data: b"data:" + data),
    st.binary(max_size=12).map(lambda data: b"data: " + data),
    st.sampled_from([b"", b"data", b": comment", b"event: x", b"id: 1", b"retry: 5", b"database: no", b"data : no"]),
).filter(lambda line: not {10, 13} & set(line))
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
BOM = b"\xef\xbb\xbf"


def split(pieces: Sequence[bytes]) -> list[bytes]:
    """Return the events of these pieces, including those at the end of the stream."""
    splitter = FrameSplitter()
    found = [event for piece in pieces for event in splitter.feed(piece)]
    return found + splitter.end()


def expected(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the events of complete lines, as the specification defines them."""
    data: list[bytes] = []
    for line in [*lines, b""]:
        if not line and data:
            yield b"\n".join(data)
            data = []
        name, colon, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" ") if colon else b"")


def cut(whole: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the bytes in pieces, cut at these places."""
    bounds = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in pairwise(bounds)]


@given(
    st.booleans(),
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_arbitrary_lines_cut_anywhere_give_same_events(
    bom: bool, lines: list[tuple[bytes, bytes]], places: list[int]
) -> None:
    whole = BOM * bom + b"".join(line + end for line, end in lines)
    assert split(cut(whole, places)) == list(expected([line for line, _ in lines]))


@given(st.lists(LINES, max_size=12), ENDS, st.lists(st.integers(0, 400), max_size=12))
def test_every_line_ending_is_recognised(lines: list[bytes], end: bytes, places: list[int]) -> None:
    whole = b"".join(line + end for line in lines)
    assert split(cut(whole, places)) == list(expected(lines))


@given(st.lists(st.binary(max_size=20).filter(lambda data: not {10, 13} & set(data)), max_size=6))
def test_pieces_of_one_event_each_are_split(events: list[bytes]) -> None:
    assert split([b"data: %b\n\n" % event for event in events]) == events


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"data: a\n\ndata: b\n\n"], [b"a", b"b"]),
        ([b"data: a\n", b"\n"], [b"a"]),
        ([b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"], [b"a", b"b"]),
        ([b"data: a\r", b"\r"], [b"a"]),
        ([b"data: a\ndata: b\n\n"], [b"a\nb"]),
        ([b"data: a\n", b"data: b\n\n"], [b"a\nb"]),
        ([b": hi\n\n", b"data: a\n\n", b":\n\n"], [b"a"]),
        ([BOM + b"data: a\n\n"], [b"a"]),
        ([b"\xef", b"\xbb", b"\xbfdata: a\n\n"], [b"a"]),
        ([b"data: a\n\n", BOM + b"data: b\n\n"], [b"a"]),
        ([b"data: a\n"], [b"a"]),
        ([b"data: a\n\ndata: cut o"], [b"a"]),
        ([b'data: a\n\ndata: {"b": 1}'], [b"a", b'{"b": 1}']),
        ([b"data: a\n\ndata: [DO", b"NE]"], [b"a", b"[DONE]"]),
        ([b"data:a\n\n", b"data:  a\n\n"], [b"a", b" a"]),
        ([b"data: a\x0bb\xe2\x80\xa8c\n\n"], [b"a\x0bb\xe2\x80\xa8c"]),
        ([b""], []),
    ],
)
def test_frames_are_split_into_events(pieces: list[bytes], events: list[bytes]) -> None:
    assert split(pieces) == events


@pytest.mark.parametrize(
    ("rest", "cut"),
    [
        (b"data: {", True),
        (b"da", True),
        (b'data: {"a": 1', True),
        (b'data: {"a": 1}', False),
        (b": ping", False),
        (b"", False),
    ],
)
def test_stream_that_ends_within_an_event_is_cut(rest: bytes, cut: bool) -> None:
    splitter = FrameSplitter()
    splitter.feed(b"data: a\n\n" + rest)
    splitter.end()
    assert splitter.is_cut == cut


@pytest.mark.parametrize("piece", [b"x" * (1 << 16), b"data: %b\n" % (b"x" * (1 << 16))])
def test_endless_event_is_refused(piece: bytes) -> None:
    splitter = FrameSplitter()
    splitter.feed(b"data: ")
    for _ in range(15):
        assert splitter.feed(piece) == []
    with pytest.raises(ValueError, match="too long"):
        [splitter.feed(piece) for _ in range(2)]


@pytest.mark.parametrize("line", [b": x\n\n", b"\n", b"id: 1\n\n", b": x\r\n\r\n"])
def test_stream_without_data_is_refused_after_limit(line: bytes) -> None:
    splitter, piece = FrameSplitter(), line * (60_000 // len(line))
    for _ in range(17):
        assert splitter.feed(piece) == []
    with pytest.raises(ValueError, match="lines without data"):
        [splitter.feed(piece) for _ in range(3)]


def test_comments_between_events_do_not_accumulate() -> None:
    splitter = FrameSplitter()
    for _ in range(40):
        assert splitter.feed(b": x\n\n" * 10_000) == []
        assert splitter.feed(b"data: a\n\n") == [b"a"]


def test_event_is_emitted_with_piece_that_completes_it() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"data: a\r\n\r") == [b"a"]
    assert splitter.feed(b"\ndata: b") == []
    assert splitter.feed(b"\n\n") == [b"b"]
    assert splitter.end() == []
