"""The strict reader of server-sent events."""

import pytest

from tests.support.strict import WireError, iter_sse, read_sse

GOOD = (
    b'event: a\ndata: {"type":"a","n":"\xc3\xa9"}\n\n: keep-alive\n\nevent: b\ndata: {"type":"b"}\n\ndata: [DONE]\n\n'
)


def test_valid_frames_are_read() -> None:
    frames = read_sse(GOOD)
    assert frames == [("a", {"type": "a", "n": "é"}), ("b", {"type": "b"})]
    assert frames.comments == 1
    assert [event["type"] for event in frames.events] == ["a", "b"]


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_arbitrary_cuts_do_not_change_frames(ends: bytes) -> None:
    raw = GOOD.replace(b"\n", ends)
    assert read_sse(raw[at : at + 1] for at in range(len(raw))) == read_sse(GOOD)


def test_frames_are_read_as_they_arrive() -> None:
    chunks = iter([GOOD[:40], GOOD[40:]])
    assert next(iter_sse(chunks))[0] == "a"
    assert next(chunks) == GOOD[40:]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "without `data: "),
        (GOOD[:-14], "without `data: "),
        (GOOD[:-1], "within a frame"),
        (GOOD + b": late\n\n", "after `data: "),
        (GOOD + GOOD, "after `data: "),
        (b'data: {"type":"a"}\n\n' + GOOD, "not `event: NAME`"),
        (b"event: a\ndata: {\n\n" + GOOD, "not JSON"),
        (b'event: b\ndata: {"type":"a"}\n\n' + GOOD, "has other data"),
        (b"event: a\ndata: []\n\n" + GOOD, "has other data"),
        (b'event:a\ndata:{"type":"a"}\n\n' + GOOD, "not `event: NAME`"),
        (b'id: 1\nevent: a\ndata: {"type":"a"}\n\n' + GOOD, "not `event: NAME`"),
        (b"event: done\ndata: [DONE]\n\n" + GOOD, "not JSON"),
    ],
)
def test_invalid_frames_are_refused(raw: bytes, says: str) -> None:
    with pytest.raises(WireError) as raised:
        read_sse(raw)
    assert says in str(raised.value)
