"""The text in a call's arguments, in every notation and wherever it is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.stream.argument_text import ArgumentText

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\{}\n\x00\u20ac\U0001f600')))
BLANKS = st.text(" \t\r\n", max_size=2)
CUTS = st.lists(st.integers(0, 200), max_size=20)


def decoded(arguments: str, cuts: list[int]) -> str:
    """Return the text of arguments that arrive in pieces."""
    decoder = ArgumentText("input")
    places = sorted({0, *(min(cut, len(arguments)) for cut in cuts), len(arguments)})
    pieces = [decoder.feed(arguments[start:end]) for start, end in itertools.pairwise(places)]
    return "".join([*pieces, decoder.end()])


@given(TEXTS, st.booleans(), BLANKS, CUTS)
def test_text_in_json_object_is_decoded(text: str, ascii_only: bool, blank: str, cuts: list[int]) -> None:
    value = json.dumps(text, ensure_ascii=ascii_only)
    arguments = f'{blank}{{{blank}"input"{blank}:{blank}{value}{blank}}}{blank}'
    assert decoded(arguments, cuts) == text


@given(TEXTS.filter(lambda text: not text.lstrip().startswith("{")), CUTS)
def test_non_object_is_text_itself(text: str, cuts: list[int]) -> None:
    assert decoded(text, cuts) == text


@given(st.text('\\"u{}:inputdD8cC0fx ', max_size=60), CUTS)
def test_arbitrary_cuts_do_not_change_text(arguments: str, cuts: list[int]) -> None:
    whole = decoded(arguments, [])
    assert decoded(arguments, cuts) == whole
    whole.encode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        (" ", " "),
        ("{", "{"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"patch": "a"}', "a"),
        ('{"why": "x", "input": "a"}', "a"),
        ('{"input": "a", "why": "x"}', "a"),
        ('{"why": "x", "patch": "a"}', '{"why": "x", "patch": "a"}'),
        ("{ return 1 }", "{ return 1 }"),
        ('"a"', '"a"'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "line\nbreak"}', "line\nbreak"),
        (r'{"input": "a\qb"}', r"a\qb"),
        (r'{"input": "\u12zz"}', r"\u12zz"),
        (r'{"input": "\ud83d\ude00"}', "\U0001f600"),
        (r'{"input": "\ud83dx\ude00"}', "\ufffdx\ufffd"),
        (r'{"input": "\ud83d\u0041"}', "\ufffdA"),
        (r'{"input": "\ud83d\u12zz"}', "\ufffd\\u12zz"),
        (r'{"input": "\ud83d\n"}', "\ufffd\n"),
        # cut off
        ('{"input": "a', "a"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "a\\ud83d', "a\ufffd"),
        ('{"input": "a\\ud83d\\ude', "a\ufffd"),
    ],
)
def test_malformed_arguments_of_models_are_decoded(arguments: str, text: str) -> None:
    assert decoded(arguments, []) == text
    assert decoded(arguments, list(range(len(arguments)))) == text


def test_text_is_decoded_while_it_arrives() -> None:
    decoder = ArgumentText("input")
    assert [decoder.feed(piece) for piece in ['{"in', 'put":"', "a", "\\", "n\\ud83d", '\\ude00b"', "}"]] == [
        "",
        "",
        "a",
        "",
        "\n",
        "\U0001f600b",
        "",
    ]
    assert decoder.end() == ""


def test_endless_whitespace_is_text() -> None:
    decoder = ArgumentText("input")
    assert "".join(decoder.feed(" ") for _ in range(300)) == " " * 300
