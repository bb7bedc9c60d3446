"""Calls are the same in every dialect of their fragments; what cannot be told apart is an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.call_fragments import CallFragments, Fragment
from llama_stack_responses.chat.cleaned_names import meant_name, without_marks
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.stream.deltas import ToolCall

type Call = tuple[str, str]

OSLO: Final = '{"city": "Oslo", "days": [1, 2]}'
ROME: Final = '{"town": "Rome"}'


def part(arguments: str = "", name: str = "", call_id: str = "", index: int | None = 0, position: int = 0) -> Fragment:
    return Fragment(index, position, call_id, name, arguments)


def as_object(value: Any, name: str = "", call_id: str = "") -> Fragment:
    return Fragment(0, 0, call_id, name, json.dumps(value), as_object=True)


def read(fragments: Sequence[Fragment], *, cut: bool = False) -> list[tuple[str, str, str]]:
    """Return each call as (name, id, arguments), as the deltas make it; texts are taken past the reader if allowed."""
    calls = CallFragments()
    deltas: list[ToolCall] = []
    for each in fragments:
        last = deltas[-1].key if deltas else None
        extended = calls.extendable(last) if not (each.name or each.call_id or last is None) else None
        if extended and each.arguments and last == (each.index, 0) and extended.extends(each.arguments):
            extended.append(each.arguments)
            deltas.append(ToolCall(last, arguments=each.arguments))
        else:
            deltas += calls.take(each)
    deltas += calls.end(cut=cut)
    made: dict[Any, list[str]] = {}
    for delta in deltas:
        call = made.setdefault(delta.key, ["", "", ""])
        call[0] += delta.name
        call[1] = call[1] or delta.call_id
        call[2] += delta.arguments
    return [(name, call_id, arguments) for name, call_id, arguments in made.values()]


def unclear(fragments: Sequence[Fragment]) -> str:
    with pytest.raises(ApiError) as caught:
        read(fragments)
    assert caught.value.status == 502
    return caught.value.message


ONE: Final = {
    "deltas": [part("", "f", "a"), part('{"city": "Os'), part('lo", "days": [1,'), part(" 2]}")],
    "once more with id and name": [part("", "f", "a"), part(OSLO[:9]), part(OSLO[9:]), part(OSLO, "f", "a")],
    "once more without id and name": [part("", "f", "a"), part(OSLO[:9]), part(OSLO[9:]), part(OSLO)],
    "once more with name": [part("", "f", "a"), part(OSLO[:9]), part(OSLO[9:]), part(OSLO, "f")],
    "once more in pieces": [part(OSLO, "f", "a"), part(OSLO[:9]), part(OSLO[9:])],
    "once more, written otherwise": [part(OSLO, "f", "a"), part(OSLO.replace(" ", ""), "f", "a")],
    "once more in the same fragment": [part(OSLO + OSLO, "f", "a")],
    "once more with another id": [part(OSLO, "f", "a"), part(OSLO, "", "b")],
    "once more as an object": [part("", "f", "a"), part(OSLO[:9]), part(OSLO[9:]), as_object(json.loads(OSLO))],
    "whole before it was complete": [part(OSLO[:12], "f", "a"), part(OSLO)],
    "whole behind the first bracket": [part("{", "f", "a"), part(OSLO)],
    "whole behind a string": [part('{"city": "Oslo"', "f", "a"), part(OSLO)],
    "whole where a value may begin": [part('{"city": ', "f", "a"), part(OSLO)],
    "cumulative": [part("", "f", "a"), *(part(OSLO[:end]) for end in range(1, len(OSLO) + 1))],
    "cumulative, with id and name": [part(OSLO[:end], "f", "a") for end in (0, 4, 4, 20, len(OSLO), len(OSLO))],
    "empty object first": [part("{}", "f", "a"), part(OSLO[:9]), part(OSLO[9:])],
    "another index": [part("", "f", "a"), part(OSLO[:9], index=1), part(OSLO[9:], index=1)],
    "alone in a list": [part(f"[{OSLO}", "f", "a"), part("]")],
    "empty object in pieces first": [part("{", "f", "a"), part("}"), part(OSLO[:9]), part(OSLO[9:])],
    "empty object first, in the same fragment": [part("{}" + OSLO, "f", "a")],
    "two empty objects first": [part("{}", "f", "a"), part("{}", "f", "a"), part(OSLO, "f", "a")],
    "empty object last": [part(OSLO, "f", "a"), part("{}")],
    "one bracket too many": [part(OSLO, "f", "a"), part("}\n")],
    "whitespace last": [part(OSLO, "f", "a"), part(" \n")],
    "names in each fragment": [part(each, "f", "a") for each in ("", OSLO[:9], OSLO[9:])],
    "names in each fragment, id in the first": [part(OSLO[:9], "f", "a"), part(OSLO[9:], "f"), part("", "f")],
    "names with marks": [part(OSLO[:9], "f", "a"), part(OSLO[9:], "f<|channel|>commentary")],
    "names with quotes": [part("", "f", "a"), part(OSLO, "f", "a")],
    "other ids": [part("", "f", "a"), part(OSLO[:9], "", "b"), part(OSLO[9:], "", "c")],
    "other ids with names": [part(OSLO[:9], "f", "a"), part(OSLO[9:12], "f", "b"), part(OSLO[12:], "f", "c")],
    "other ids with names, the first one without arguments": [
        part("", "f", "a"),
        part(OSLO[:9], "f", "b"),
        part(OSLO[9:], "f", "c"),
    ],
    "once more with name and another id": [part(OSLO[:9], "f", "a"), part(OSLO[9:]), part(OSLO, "f", "b")],
    "no index": [part(each, name, index=None, call_id="a") for each, name in ((OSLO[:9], "f"), (OSLO[9:], ""))],
    "no index in the rest": [part("", "f", "a", 3), part(OSLO[:9], index=None), part(OSLO[9:], index=None)],
    "another index in the rest": [part("", "f", "a", 3), part(OSLO[:9], "", "a", 4), part(OSLO[9:], "", "a", 5)],
    "late name": [part(OSLO[:9], "", "a"), part(OSLO[9:], "f", "a")],
    "name in pieces": [part("", "f", "a"), part(OSLO)],
}


@pytest.mark.parametrize("form", ONE)
def test_one_call_in_any_form_is_that_call(form: str) -> None:
    [(name, call_id, arguments)] = read(ONE[form])
    assert (name, call_id, json.loads(arguments)) == ("f", "a", json.loads(OSLO))


def test_call_without_arguments_before_those_of_another_id_is_an_error() -> None:
    assert "'f'" in unclear([part("", "f", "a"), part("", "f", "b"), part(OSLO[:9], "f", "c"), part(OSLO[9:])])


def test_calls_without_arguments_are_separated_by_ids() -> None:
    assert read([part("", "f", "a"), part("", "f", "b")]) == [("f", "a", ""), ("f", "b", "")]


def test_call_in_pieces_is_another_one_even_if_it_is_equal() -> None:
    pieces = [part(OSLO[:9], "f", "a"), part(OSLO[9:]), part(OSLO[:9], "f", "b"), part(OSLO[9:])]
    assert read(pieces) == [("f", "a", OSLO), ("f", "b", OSLO)]


def test_object_as_arguments_becomes_text() -> None:
    assert read([as_object({"a": [1]}, "f", "a")]) == [("f", "a", '{"a": [1]}')]


@pytest.mark.parametrize("size", [3, 100])
def test_arguments_encoded_twice_are_decoded(size: int) -> None:
    text = json.dumps(OSLO)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read([part("", "f", "a"), *map(part, pieces), part(ROME, "g", "b", 1)]) == [
        ("f", "a", OSLO),
        ("g", "b", ROME),
    ]


STANDS_IN: Final = ["null", "None", '""', "[]", "[ ]", '"{}"', " null\n", "nullnull"]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("stands_in", STANDS_IN)
@pytest.mark.parametrize("rest", [[OSLO[:9], OSLO[9:]], [OSLO[:9], OSLO], [OSLO, OSLO]])
def test_what_stands_for_arguments_before_them_is_dropped(stands_in: str, size: int, rest: list[str]) -> None:
    pieces = [stands_in[start : start + size] for start in range(0, len(stands_in), size)]
    for first in ([part("", "f", "a"), *map(part, [*pieces, rest[0]])], [part(stands_in + rest[0], "f", "a")]):
        [(name, call_id, arguments)] = read([*first, *map(part, rest[1:])])
        assert (name, call_id, arguments.lstrip()) == ("f", "a", OSLO)


def test_what_stands_for_arguments_before_half_of_them_is_an_error() -> None:
    assert "within the arguments" in unclear([part("null", "f", "a"), part(OSLO[:9])])


def test_what_may_stand_for_arguments_of_another_call_is_an_error() -> None:
    assert "cannot be told" in unclear([part("null", "f"), part(OSLO, "f")])


@pytest.mark.parametrize("text", ["null", "None", " null\n", "nullnull", "```json\n{}\n```", "```{}```"])
def test_arguments_that_stand_for_none_are_an_empty_object(text: str) -> None:
    assert read([part("", "f", "a"), part(text[:2]), part(text[2:])]) == [("f", "a", "{}")]


def test_arguments_in_a_fence_are_read() -> None:
    assert read([part("```json\n", "f", "a"), part(OSLO), part("\n```")]) == [("f", "a", OSLO)]


@pytest.mark.parametrize("before", ["<tool_call>", "<|call|>\n", "\ufeff", "\ufeff```json\n"])
@pytest.mark.parametrize("behind", ["", "\n</tool_call>"])
def test_marks_before_arguments_are_dropped(before: str, behind: str) -> None:
    assert read([part(before, "f", "a"), part(OSLO[:9]), part(OSLO[9:] + behind)]) == [("f", "a", OSLO)]
    assert read([part(before + OSLO + behind, "f", "a")]) == [("f", "a", OSLO)]


@pytest.mark.parametrize("before", ["<tool_call>", "```json\n", "\ufeff"])
def test_half_arguments_behind_marks_are_an_error(before: str) -> None:
    assert "within the arguments" in unclear([part(before, "f", "a"), part(OSLO[:9])])


@pytest.mark.parametrize("mark", ["</tool_call>", "<|call|>", "\n</function>\n</tool_call>\n", "\n```\n"])
def test_marks_behind_arguments_are_dropped(mark: str) -> None:
    assert read([part(OSLO[:9], "f", "a"), part(OSLO[9:]), part(mark)]) == [("f", "a", OSLO)]
    assert read([part(OSLO + mark, "f", "a")]) == [("f", "a", OSLO)]


def test_growing_objects_are_one_call() -> None:
    values = [{}, {"a": "x"}, {"a": "xy", "b": [1]}, {"a": "xy", "b": [1, 2]}]
    assert read([as_object(value, "f", "a") for value in values]) == [("f", "a", json.dumps(values[-1]))]


def test_objects_that_differ_are_unclear() -> None:
    assert "'f'" in unclear([as_object({"a": 1}, "f", "a"), as_object({"b": 1}, "f", "a")])


def test_call_without_arguments_keeps_its_empty_object() -> None:
    calls = [part("{}", "f", "a"), part("{}", "g", "b", 1), part(ROME[:3], "h", "c", 2), part(ROME[3:], index=2)]
    assert read(calls) == [("f", "a", "{}"), ("g", "b", "{}"), ("h", "c", ROME)]


THREE: Final = (OSLO, ROME, OSLO)
SEVERAL: Final = {
    "own indices": [part(OSLO, "f", "a"), part(ROME, "f", "b", 1), part(OSLO, "f", "c", 2)],
    "index 0, own ids": [part(OSLO, "f", "a"), part(ROME, "f", "b"), part(OSLO, "f", "c")],
    "index 0, two fragments each": [
        each
        for text, call_id in ((OSLO, "a"), (ROME, "b"), (OSLO, "c"))
        for each in (part(text[:9], "f", call_id), part(text[9:]))
    ],
    "index 0, two fragments each, opened before": [
        each
        for text, call_id in ((OSLO, "a"), (ROME, "b"), (OSLO, "c"))
        for each in (part("", "f", call_id), part(text[:9], "", call_id), part(text[9:], "", call_id))
    ],
    "index 0, interleaved by id": [
        part(OSLO[:9], "f", "a"),
        part(ROME[:9], "f", "b"),
        part(OSLO[:9], "f", "c"),
        part(ROME[9:], "", "b"),
        part(OSLO[9:], "", "c"),
        part(OSLO[9:], "", "a"),
    ],
    "no index, one list": [part(OSLO, "f", "a", None), part(ROME, "f", "b", None, 1), part(OSLO, "f", "c", None, 2)],
    "no index, one chunk each": [part(OSLO, "f", "a", None), part(ROME, "f", "b", None), part(OSLO, "f", "c", None)],
    "all once more": [
        *(
            part(each, "f", call_id, index)
            for index, (each, call_id) in enumerate(zip((OSLO, ROME, OSLO), "abc", strict=True))
        ),
        *(
            part(each, "f", call_id, index)
            for index, (each, call_id) in enumerate(zip((OSLO, ROME, OSLO), "abc", strict=True))
        ),
    ],
    "all once more with other ids": [
        *(part(each, "f", call_id, index) for index, (each, call_id) in enumerate(zip(THREE, "abc", strict=True))),
        *(part(each, "f", call_id, index) for index, (each, call_id) in enumerate(zip(THREE, "xyz", strict=True))),
    ],
    "all once more with other ids, in two fragments each": [
        *(part(each, "f", call_id, index) for index, (each, call_id) in enumerate(zip(THREE, "abc", strict=True))),
        *(
            each
            for index, (text, call_id) in enumerate(zip(THREE, "xyz", strict=True))
            for each in (part(text[:9], "f", call_id, index), part(text[9:], "", call_id, index))
        ),
        part("", "", "x", 0),
    ],
    "all once more with other ids, in two fragments by turns": [
        *(part(each, "f", call_id, index) for index, (each, call_id) in enumerate(zip(THREE, "abc", strict=True))),
        *(part(text[:9], "f", call_id, index) for index, (text, call_id) in enumerate(zip(THREE, "xyz", strict=True))),
        *(part(text[9:], "", call_id, index) for index, (text, call_id) in enumerate(zip(THREE, "xyz", strict=True))),
    ],
    "all once more on index 0": [
        *(part(each, "f", call_id) for each, call_id in zip((OSLO, ROME, OSLO), "abc", strict=True)),
        *(part(each, "f", call_id) for each, call_id in zip((OSLO, ROME, OSLO), "abc", strict=True)),
    ],
}


@pytest.mark.parametrize("form", SEVERAL)
def test_several_calls_of_one_function_are_told_apart(form: str) -> None:
    assert sorted(read(SEVERAL[form]), key=lambda call: call[1]) == [
        ("f", "a", OSLO),
        ("f", "b", ROME),
        ("f", "c", OSLO),
    ]


def test_other_call_with_another_id_at_a_known_index_is_a_call() -> None:
    calls = [part(OSLO, "f", "a"), part("{}", "g", "b", 1), part(ROME, "f", "c"), part(ROME, "g", "d", 1)]
    assert sorted(read(calls)) == [("f", "a", OSLO), ("f", "c", ROME), ("g", "b", "{}"), ("g", "d", ROME)]


def test_half_call_with_another_id_at_a_known_index_is_an_error() -> None:
    assert "within the arguments" in unclear([part(OSLO, "f", "a"), part(ROME, "g", "b", 1), part(OSLO[:9], "f", "c")])


@pytest.mark.parametrize("ids", [("x", "y"), ("", "")])
@pytest.mark.parametrize("indices", [(0, 1), (2, 3), (0, 0)])
def test_list_of_all_calls_with_other_ids_repeats_them(ids: tuple[str, str], indices: tuple[int, int]) -> None:
    calls = CallFragments()
    for each in (part(OSLO, "f", "a"), part("{}", "g", "b", 1)):
        calls.take(each)
    again = [part(OSLO.replace(" ", ""), "f", ids[0], indices[0]), part("{}", "g", ids[1], indices[1])]
    assert calls.repeats(again)
    assert not calls.repeats([*again[:1], part(ROME, "g", ids[1], indices[1])])
    assert not calls.repeats(again[::-1])
    assert not calls.repeats(again[:1])
    assert not calls.repeats([*again[:1], part("{}", "g", "b", 1)]), "an id says which call it is"


def interleaved(first: str, *, index: int | None = 0, names: bool = False, opened: bool = True) -> list[Fragment]:
    """Return two calls of one function that begin equally, their fragments by turns."""
    ids, rest = ("a", "b"), "f" if names else ""
    begin = [part(first, "f", call_id, index) for call_id in ids]
    ends = [part(f'{{"a": "{call_id}"}}'.removeprefix(first), rest, call_id, index) for call_id in ids]
    return [*([part("", "f", call_id, index) for call_id in ids] if opened else []), *begin, *ends]


@pytest.mark.parametrize("first", ['{"', '{"a": ', "{", '{"a": "'])
@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("index", [0, None])
def test_calls_that_begin_equally_are_told_apart_by_their_ids(
    first: str, names: bool, opened: bool, index: int | None
) -> None:
    fragments = interleaved(first, index=index, names=names, opened=opened)
    assert sorted(read(fragments)) == [("f", "a", '{"a": "a"}'), ("f", "b", '{"a": "b"}')]


def test_whole_call_between_fragments_of_another_is_a_call_of_its_own() -> None:
    fragments = [part('{"a": ', "f", "a"), part('{"a": "b"}', "f", "b"), part('"a"}', "", "a")]
    assert sorted(read(fragments)) == [("f", "a", '{"a": "a"}'), ("f", "b", '{"a": "b"}')]


def test_calls_without_ids_on_one_index_are_told_apart_by_their_arguments() -> None:
    fragments = [part(OSLO[:9], "f"), part(OSLO[9:]), part("", "f"), part(ROME[:9]), part(ROME[9:]), part("", "f")]
    assert read(fragments) == [("f", "", OSLO), ("f", "", ROME)]


UNCLEAR: Final = {
    "two that begin equally, by turns without ids": [
        part('{"', "f"),
        part('{"', "f"),
        part('a": "x"}'),
        part('a": "y"}'),
    ],
    "two by turns without ids": [part('{"a": ', "f"), part('{"b": ', "f"), part("1}"), part("2}")],
    "two by turns without names": [part('{"a": ', "f", "a"), part('{"a": ', "", "b"), part('"x"}', "", "a")],
    "each fragment twice": [part(each, "f", "a") for each in ('{"a": ', '{"a": ', '"x"}', '"x"}')],
    "each fragment twice, which would be JSON": [
        *(part('{"a": [', "f", "a"), part('{"a": [', "f", "a")),
        *(part("]}"), part("]}")),
    ],
    "each fragment twice, the name before": [
        part("", "f", "a"),
        *(part(each) for each in ('{"a": ', '{"a": ', '"x"}', '"x"}')),
    ],
    "two texts": [part('"x"', "f", "a"), part('"x"')],
    "two objects behind a mark": [part("<tool_call>" + OSLO, "f", "a"), part(OSLO)],
    "a call without a name": [part(OSLO, "f", "a"), part(ROME, "", "b", 1)],
    "a call without a name and an id": [part(OSLO, "f", "a"), part(ROME, index=1)],
    "cumulative, with other ids": [part(OSLO[:end], "f", f"a{end}" if end > 4 else "a") for end in (4, 20, len(OSLO))],
    "two equal calls without ids": [part(OSLO, "f"), part(OSLO, "f")],
    "empty object and arguments without ids": [part("{}", "f"), part(OSLO, "f")],
    "other arguments without a name": [part(OSLO, "f", "a"), part(ROME)],
    "other arguments with another id and no name": [part(OSLO, "f", "a"), part(ROME, "", "b")],
    "other arguments in pieces": [part(OSLO, "f", "a"), part(ROME[:9]), part(ROME[9:])],
    "other arguments with the same id": [part(OSLO, "f", "a"), part(ROME, "f", "a")],
    "other arguments in the same fragment": [part(OSLO + ROME, "f", "a")],
    "arguments behind an empty object that was passed on": [part("{}", "f", "a"), part(ROME, "g", "b", 1), part(ROME)],
    "an empty object, and another id without a name": [part("{}", "f", "a"), part(ROME, "", "b")],
    "text behind the arguments": [part(OSLO, "f", "a"), part("lo")],
    "an object where none can be": [part('{"city":"Oslo"', "f", "a"), part('{"city": "Oslo"}')],
    "a cumulative text that changes": [part(OSLO[:4], "f", "a"), part(OSLO[:9]), part(OSLO[:12]), part(ROME)],
    "a second half without a name": [part(OSLO, "f", "a"), part(ROME[:9])],
    "the same id at two places": [part(OSLO, "f", "a"), part(OSLO, "f", "a", 1)],
    "the end of an object": [part("", "f", "a"), part('"city":'), part(' "Oslo"}')],
    "the last bracket of an object": [part("", "f", "a"), part("}")],
    "half, and another call": [part(OSLO[:9], "f", "a"), part(ROME, "g", "b")],
    "half, written otherwise": [part('{"city":"Os', "f", "a"), part('{"city": "Oslo"}')],
}


@pytest.mark.parametrize("form", UNCLEAR)
def test_what_cannot_be_told_apart_is_an_error(form: str) -> None:
    assert "tool 'f'" in unclear(UNCLEAR[form]) or "tool ''" in unclear(UNCLEAR[form])


@pytest.mark.parametrize("end", range(1, len(OSLO)))
def test_half_arguments_are_an_error_unless_the_answer_was_cut(end: int) -> None:
    half = [part("", "f", "a"), part(OSLO[:end])]
    assert "within the arguments of a call of the tool 'f'" in unclear(half)
    assert read(half, cut=True) == [("f", "a", OSLO[:end])]


@pytest.mark.parametrize(
    "text",
    ["hello", "\n", "12", "", "null and void", "nothing", "```x", "a {", "'{", '"a" b', '"a"', '"[1]"', '"a": b'],
)
def test_arguments_that_are_not_json_are_passed_on(text: str) -> None:
    assert read([part("", "f", "a"), part(text[:1]), part(text[1:])]) == [("f", "a", text)]


def test_text_of_custom_tool_is_passed_on_whatever_it_is() -> None:
    pieces = ["{", "}", "{}", '{"a"', "]"]
    assert read([Fragment(0, 0, "a", "c", each, plain=True) for each in pieces]) == [("c", "a", "".join(pieces))]


def test_large_arguments_sent_again_are_one_call() -> None:
    large = json.dumps({"text": "word {} " * 20_000})
    pieces = [large[start : start + 50] for start in range(0, len(large), 50)]
    assert read([part("", "f", "a"), *map(part, pieces), part(large)]) == [("f", "a", large)]


@pytest.mark.parametrize(
    "name",
    [
        "functions.get_weather",
        "function.get_weather",
        "functions.get_weather:0",
        "get_weather<|channel|>commentary",
        "get_weather<|channel|>",
        "get_weather<|chan",
        "get_weather<|constrain|>json",
        "functions.get_weather<|channel|>commentary json",
        "<|channel|>commentary to=functions.get_weather",
        "to=functions.get_weather",
        "default_api.get_weather",
        "tools.get_weather",
        " get_weather",
        "get_weather",
        "get_weather()",
    ],
)
def test_name_means_the_tool_within_its_marks(name: str) -> None:
    assert meant_name(name, {"get_weather", "commentary_2"}) == "get_weather"


@pytest.mark.parametrize("name", ["functions.f", "f<|x|>", "get", "get_weather2", "", "<|", "functions.", "x" * 9999])
def test_name_of_unknown_tool_stays(name: str) -> None:
    assert meant_name(name, {"get_weather"}) == name


def test_name_with_a_dot_means_the_function_of_a_namespace() -> None:
    assert meant_name("mcp__x.f", {"mcp__x__f"}) == "mcp__x__f"


def test_known_name_is_never_another_tool() -> None:
    assert meant_name("functions.f", {"functions.f", "f"}) == "functions.f"
    assert without_marks("<|a|>") == "<|a|>"


# Any calls in any dialect


@dataclass(frozen=True)
class Dialect:
    """How a server sends calls."""

    ids: Literal["first", "each", "none"]
    index: Literal["own", "zero", "missing"]
    names: Literal["first", "each", "marked"]
    form: Literal["deltas", "cumulative", "whole", "object"]
    opened: bool
    placeholder: bool
    again: Literal["", "whole", "bare", "named", "spaced", "pieces"]

    def fragments(self, calls: Sequence[Call], cuts: Sequence[int]) -> list[Fragment]:
        """Return the fragments of calls, cut at these places."""
        out: list[Fragment] = []
        for number, (name, arguments) in enumerate(calls):
            texts = self._texts(arguments, cuts)
            for place, text in enumerate(texts):
                out.append(self._fragment(number, place == 0, name, text))
            if self.again:
                out += self._again(number, name, arguments)
        return out

    def _texts(self, arguments: str, cuts: Sequence[int]) -> list[str]:
        places = sorted({0, *(cut % len(arguments) for cut in cuts), len(arguments)})
        if self.form == "deltas":
            texts = [arguments[start:end] for start, end in pairwise(places)]
        elif self.form == "cumulative":
            texts = [arguments[:end] for end in places[1:]]
        else:
            texts = [arguments]
        return [*([""] if self.opened else []), *(["{}"] if self.placeholder else []), *texts]

    def _fragment(self, number: int, first: bool, name: str, text: str) -> Fragment:
        named = name if first or self.names == "each" else f"{name}<|channel|>c" if self.names == "marked" else ""
        call_id = f"id_{number}" if self.ids == "each" or (first and self.ids == "first") else ""
        index = {"own": number, "zero": 0, "missing": None}[self.index]
        return Fragment(index, 0, call_id, named, text, as_object=self.form == "object" and text != "")

    def _again(self, number: int, name: str, arguments: str) -> list[Fragment]:
        index = {"own": number, "zero": 0, "missing": None}[self.index]
        call_id = "" if self.ids == "none" else f"id_{number}"
        match self.again:
            case "whole":
                return [Fragment(index, 0, call_id, name, arguments)]
            case "named":
                return [Fragment(index, 0, "", name, arguments)]
            case "spaced":
                return [Fragment(index, 0, call_id, "", json.dumps(json.loads(arguments), indent=1))]
            case "pieces":
                return [Fragment(index, 0, "", "", arguments[:3]), Fragment(index, 0, "", "", arguments[3:])]
        return [Fragment(index, 0, "", "", arguments)]


DIALECTS: Final = st.builds(
    Dialect,
    ids=st.sampled_from(["first", "each", "none"]),
    index=st.sampled_from(["own", "zero", "missing"]),
    names=st.sampled_from(["first", "each", "marked"]),
    form=st.sampled_from(["deltas", "cumulative", "whole", "object"]),
    opened=st.booleans(),
    placeholder=st.booleans(),
    again=st.sampled_from(["", "whole", "bare", "named", "spaced", "pieces"]),
)
VALUES: Final = st.recursive(
    st.text('{}[]":,\\ab ', max_size=5) | st.integers(0, 9) | st.none(), lambda inner: st.lists(inner, max_size=2)
)
ARGUMENTS: Final = st.dictionaries(
    st.text('{}"ab', max_size=2), VALUES | st.dictionaries(st.just("a"), VALUES, max_size=1), max_size=3
).map(json.dumps)
CALLS: Final = st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), min_size=1, max_size=3)


@settings(max_examples=500)
@given(calls=CALLS, dialect=DIALECTS, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_any_calls_in_any_dialect_are_these_calls_or_an_error(
    calls: list[Call], dialect: Dialect, cuts: list[int]
) -> None:
    try:
        found = read(dialect.fragments(calls, cuts))
    except ApiError:
        # With the name in each fragment, one that repeats all characters so far may begin another call.
        assert dialect != Dialect("first", "own", "first", "deltas", dialect.opened, False, "")
        return
    assert [(without_marks(name), json.loads(arguments or "{}")) for name, _, arguments in found] == [
        (name, json.loads(arguments)) for name, arguments in calls
    ]
