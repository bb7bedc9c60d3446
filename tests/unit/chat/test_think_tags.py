"""Inline reasoning is separated from the answer wherever its tags are cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.profile import InlineThinking
from llama_stack_responses.chat.think_tags import ThinkTagSplitter

TAGS: Final = {
    "think": InlineThinking(),
    "think in the prompt": InlineThinking(starts_open=True),
    "thought": InlineThinking(open="<|channel>thought\n", close="<channel|>"),
    "the same both ways": InlineThinking(open="%%", close="%%"),
    "repeating": InlineThinking(open="[[[", close="]]]"),
    "one character": InlineThinking(open="{", close="}"),
}


def split(tags: InlineThinking, pieces: Iterable[str]) -> list[tuple[bool, str]]:
    """Return the output for these pieces, with adjacent parts of the same kind joined."""
    splitter = ThinkTagSplitter(tags)
    out: list[tuple[bool, str]] = []
    for part in [*(part for piece in pieces for part in splitter.feed(piece)), *splitter.end()]:
        assert part[1], "an empty piece"
        if out and out[-1][0] == part[0]:
            out[-1] = (part[0], out[-1][1] + part[1])
        else:
            out.append(part)
    return out


@pytest.mark.parametrize(
    ("tags", "text", "expected"),
    [
        ("think", "plain", [(False, "plain")]),
        ("think", "<think>a</think>b", [(True, "a"), (False, "b")]),
        ("think", "<think>\na\n</think>\n\nb\n", [(True, "a\n"), (False, "b\n")]),
        ("think", "a<think>b</think>c<think>d</think>e", [(False, "a"), (True, "b"), (False, "c<think>d</think>e")]),
        ("think", "<think></think>b", [(False, "b")]),
        ("think", "<think>never closed", [(True, "never closed")]),
        ("think", "a < b <thin", [(False, "a < b <thin")]),
        ("think", "<<think>a</</think>b", [(False, "<"), (True, "a</"), (False, "b")]),
        ("think in the prompt", "a</think>b", [(True, "a"), (False, "b")]),
        ("think in the prompt", "never closed", [(True, "never closed")]),
        ("thought", "<|channel>thought\na<channel|>b", [(True, "a"), (False, "b")]),
        ("the same both ways", "a%%b%%c", [(False, "a"), (True, "b"), (False, "c")]),
        ("repeating", "[[[[a]]]b", [(True, "[a"), (False, "b")]),
        ("repeating", "[[a[[[b", [(False, "[[a"), (True, "b")]),
        ("one character", "a{b}c", [(False, "a"), (True, "b"), (False, "c")]),
    ],
)
def test_tags_cut_at_every_character_are_found(tags: str, text: str, expected: list[tuple[bool, str]]) -> None:
    assert split(TAGS[tags], [text]) == expected
    assert split(TAGS[tags], text) == expected
    for cut in range(len(text)):
        assert split(TAGS[tags], [text[:cut], text[cut:]]) == expected


@settings(max_examples=200)
@given(data=st.data(), tags=st.sampled_from(sorted(TAGS)))
def test_arbitrary_cuts_do_not_change_result(data: st.DataObject, tags: str) -> None:
    chosen = TAGS[tags]
    halves = [chosen.open, chosen.close, chosen.open[:-1] or "a", chosen.close[:-1] or "b", "\n", "x", "<", "[", "%"]
    text = "".join(data.draw(st.lists(st.sampled_from(halves), max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(chosen, pieces) == split(chosen, [text])


@given(text=st.text("ab<think>/\n", max_size=30).filter(lambda text: "<think>" not in text))
def test_text_without_opening_tag_is_answer(text: str) -> None:
    expected = text.lstrip("\n")
    assert split(InlineThinking(), text) == ([(False, expected)] if expected else [])


def test_only_possible_tag_is_held_back() -> None:
    splitter = ThinkTagSplitter(InlineThinking())
    assert splitter.feed("a<thi") == [(False, "a")]
    assert splitter.feed("s") == [(False, "<this")]
    assert splitter.feed("<") == []
    assert splitter.feed("think>b") == [(True, "b")]
    assert splitter.feed("</think") == []
    assert splitter.end() == [(True, "</think")]
    assert splitter.end() == []
