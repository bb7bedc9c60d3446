"""Text that arrives in fragments, and the work of closing large items, which belongs in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.core.decoded_arguments import decoded_arguments
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import CUSTOM, FORMS, FUNCTION, CallKind, no_fields
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.stream.fragments import LARGE_CHARACTERS, Fragments
from llama_stack_responses.stream.response import new_response

KINDS: Final = {
    "function": FUNCTION,
    "custom": CUSTOM,
    "whole": CallKind(FORMS["file_search_call"], no_fields, whole=lambda text: {"queries": [text]}, hosted=True),
    "hidden": None,
}
PIECES: Final = ['{"input": "', *["word " * 100] * 200, '"}']


def test_fragments_joined_in_between_have_the_same_text() -> None:
    fragments = Fragments()
    for number in range(5_000):
        fragments.pieces.append(str(number))
        if number in (0, 1_500, 1_501):
            fragments.join()
    assert fragments.text() == "".join(map(str, range(5_000)))
    assert fragments.length() == len(fragments.text())


def test_many_small_fragments_are_held_as_few_strings() -> None:
    fragments, expected = Fragments(), "".join(map(str, range(5_000)))
    for number in range(5_000):
        fragments.append(str(number))
        if number in (10, 1_500, 1_501):
            fragments.join()
        if number == 20:
            assert fragments.length() == 32
    assert len(fragments.pieces) < 40
    assert (fragments.text(), fragments.length()) == (expected, len(expected))


def test_large_fragments_are_not_copied_into_groups() -> None:
    fragments, large = Fragments(), "x" * 3_000
    for _ in range(100):
        fragments.append(large)
    assert all(piece is large for piece in fragments.pieces)
    assert fragments.length() == 300_000


class _Watched(list[str]):
    """Pieces that record the text of their fragments while they are joined."""

    def __init__(self, fragments: Fragments) -> None:
        super().__init__(fragments.pieces)
        self._fragments = fragments
        self.texts: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for piece in super().__iter__():
            self.texts.append(self._fragments.text())
            yield piece


def test_text_during_join_of_a_cancelled_response_is_whole() -> None:
    fragments = Fragments()
    fragments.pieces += ["a", "b"]
    fragments.join()
    fragments.pieces += ["c", "d"]
    fragments.pieces = watched = _Watched(fragments)
    fragments.join()
    assert set(watched.texts) == {"abcd"}
    assert fragments.text() == "abcd"


def test_fragments_are_unprepared_if_joining_them_takes_long() -> None:
    fragments = Fragments()
    fragments.pieces.append("x" * LARGE_CHARACTERS)
    assert not fragments.is_unprepared()
    fragments.pieces.append("y")
    assert fragments.is_unprepared()
    fragments.join()
    assert not fragments.is_unprepared()
    assert fragments.text() == "x" * LARGE_CHARACTERS + "y"


def assembler_of(name: str, pieces: Sequence[str] = PIECES) -> Assembler:
    response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    assembler = Assembler(response, KINDS.get)
    assembler.feed(ToolCall(0, name, "c1"))
    for piece in pieces[:-1]:
        part = ToolCall(0, arguments=piece)
        assert assembler.preparation(part) is None
        assembler.feed(part)
    return assembler


def test_end_of_arguments_is_found_if_their_beginning_was_read_before_many_fragments() -> None:
    assembler = assembler_of("function", ['{"a": "', *["x"] * 10, ""])
    assert not assembler.calls.pause([])
    open_text = assembler.open_text
    assert open_text
    for _ in range(100):
        open_text.append("y")
    assert not assembler.calls.pause([])
    open_text.append('"}')
    assert assembler.calls.pause([])
    assert assembler.response["output"][0]["arguments"] == '{"a": "' + "x" * 10 + "y" * 100 + '"}'


def result(assembler: Assembler) -> Any:
    items = [{key: value for key, value in item.items() if key != "id"} for item in assembler.response["output"]]
    return items, assembler.calls.server_calls


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("closing", [Finish("stop"), Finish("length"), None])
def test_large_call_prepared_in_advance_is_closed_with_the_same_content(name: str, closing: Delta | None) -> None:
    found = []
    for prepares in (False, True):
        assembler = assembler_of(name)
        if prepares:
            work = assembler.preparation(closing)
            assert work
            work()
            assert assembler.preparation(closing) is None
        if closing:
            assembler.feed(closing)
        assembler.close("completed")
        found.append(result(assembler))
    assert found[0] == found[1]
    assert ("".join(PIECES[1:-1]) in str(found[0])) == (name != "whole" or closing != Finish("length"))


@pytest.mark.parametrize("closing", [Text("Hello"), Refusal("No."), Reasoning("hm"), ToolCall(1, "function", "c2")])
def test_large_complete_call_is_prepared_before_other_content(closing: Delta) -> None:
    assembler = assembler_of("function")
    assert assembler.preparation(closing) is None  # it does not close an incomplete call
    assembler.feed(ToolCall(0, arguments=PIECES[-1]))
    assert assembler.preparation(Annotation({"type": "file_citation"}, 0)) is None
    while not (work := assembler.preparation(closing)):
        pass  # each call reads some of the arguments
    work()
    assert assembler.preparation(closing) is None
    assembler.feed(closing)
    [call, *_] = assembler.response["output"]
    assert (call["status"], call["arguments"]) == ("completed", "".join(PIECES))


@pytest.mark.parametrize("name", ["function", "custom"])
@pytest.mark.parametrize("waiting", [Text("Hello"), ToolCall(1, "function", "c2", "{}")])
def test_large_call_that_other_content_waits_for_is_prepared_while_it_grows(name: str, waiting: Delta) -> None:
    assembler = assembler_of(name, PIECES[:2])
    assembler.feed(waiting)
    count = 0
    for piece in [*["word "] * 20_600, '"}']:
        part = ToolCall(0, arguments=piece)
        while work := assembler.preparation(part):
            work()
            count += 1
        assembler.feed(part)
    assert count == 20  # the last fragment closes the call, so few are left then
    call = assembler.response["output"][0]
    assert call["status"] == "completed"
    assert "word " * 20_600 in (call["arguments"] if name == "function" else call["input"])


@pytest.mark.parametrize("signatures", [["s" * LARGE_CHARACTERS], ["s"] * 1_100], ids=["large", "many"])
def test_reasoning_with_large_signatures_is_sealed_in_advance(signatures: Sequence[str]) -> None:
    response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    sealed: list[Sequence[ReasoningSegment]] = []

    def seal(segments: Sequence[ReasoningSegment]) -> str:
        sealed.append(segments)
        return "seal"

    assembler = Assembler(response, KINDS.get, seal=seal)
    assembler.feed(Reasoning("hm"))
    for signature in signatures:
        assembler.feed(Reasoning("", signature=signature))
    work = assembler.preparation(Text("a"))
    assert work
    work()
    assert assembler.preparation(Text("a")) is None
    assembler.feed(Text("a"))
    assert list(map(len, sealed)) == [len(signatures)]


@pytest.mark.parametrize("closing", [Finish("stop"), Text("Hello")])
def test_large_arguments_are_read_in_advance_once(closing: Delta) -> None:
    reads: list[int] = []

    def read(text: str) -> dict[str, Any]:
        reads.append(len(text))
        return {"queries": [text]}

    kind = CallKind(FORMS["file_search_call"], no_fields, whole=read, hosted=True)
    response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    assembler = Assembler(response, {"f": kind}.get, whole_of={"f": read}.get)
    text = '{"q": "' + "x" * LARGE_CHARACTERS + '"}'
    assembler.feed(ToolCall(0, "f", "c1", text))
    if isinstance(closing, Finish):
        assembler.feed(ToolCall(1, "f", "c2", text))  # it opens when the first one is closed
    while work := assembler.preparation(closing):
        work()
    prepared = len(reads)
    assembler.feed(closing)
    assert prepared == len(reads) == len(assembler.response["output"]) - isinstance(closing, Text)


@pytest.mark.parametrize("count", [1, 3], ids=["one fragment", "several"])
def test_large_input_under_another_name_is_decoded_in_advance(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def decoding(text: str) -> Any:
        decoded.append(len(text))
        return decoded_arguments(text)

    monkeypatch.setattr("llama_stack_responses.stream.argument_text.decoded_arguments", decoding)
    parts = ['{"other": "', "x" * LARGE_CHARACTERS, '"}']
    pieces = parts if count > 1 else ["".join(parts)]
    assembler = assembler_of("custom", pieces)
    assembler.feed(ToolCall(0, arguments=pieces[-1]))
    while work := assembler.preparation(Finish("stop")):
        work()
    assert len(decoded) == 1
    assembler.feed(Finish("stop"))
    assert (len(decoded), assembler.response["output"][0]["input"]) == (1, parts[1])
