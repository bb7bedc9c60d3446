"""What a stream says twice is passed on once; a text that repeats itself stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.chat.pieces import ContentPart
from llama_stack_responses.chat.repeated_text import BEGINNING_CHARACTERS, RepeatedText
from llama_stack_responses.core.errors import ApiError

PROSE: Final = "The quick brown fox jumps over the lazy dog, and then it runs away into the wood."
WORDS: Final = PROSE.replace(" ", " |").split("|")


def passed(chunks: Sequence[str]) -> list[str]:
    text = RepeatedText()
    taken = [part.content for chunk in chunks for part in text.take(ContentPart(chunk, None))]
    return taken + [part.content for part in text.settle()]


@pytest.mark.parametrize(
    "chunks",
    [
        ["Hel", "Hello", "Hello world"],
        ["H", "He", "Hel", "Hello world"],
        ["\n", "\n\n", "\n\nHello", "\n\nHello world"],
        ["Hello", "Hello world"],
        ["Hello", "Hello", "Hello wor", "Hello world"],
        ["Hello ", "world", "Hello world"],
        ["Hello ", "wor", "Hello world"],
        [*WORDS, PROSE],
        [PROSE[:40], PROSE],
        [PROSE[:40], PROSE[40:], PROSE],
        [PROSE, PROSE],
    ],
)
def test_repetition_is_passed_on_once(chunks: list[str]) -> None:
    assert "".join(passed(chunks)) == chunks[-1]


@pytest.mark.parametrize(
    "chunks",
    [
        ["\nHello", " world", "Hello world"],
        ["Hello", " world", " \n", "Hello world"],
        ["Hello", " world", "\n\nHello world\n"],
        ["\n\n", *WORDS, "\n", PROSE],
        [*WORDS, " ", "\n", f"{PROSE}\n"],
    ],
)
def test_repetition_with_other_whitespace_around_it_is_passed_on_once(chunks: list[str]) -> None:
    assert "".join(passed(chunks)).strip() == chunks[-1].strip()


@pytest.mark.parametrize(
    "chunks",
    [
        ["ha", "ha", "ha"],
        ["ha", "ha", "haha"],
        ["-", "--", "----"],
        ["1", "1"],
        ["1", "11", " 111"],
        ["Happy birthday to you\n", "Happy birthday to you\n", "Happy birthday, dear model"],
        ["Happy birthday to you\n", "Happy birthday to you\n"],
        ["I", " am", "I"],
        ["I ", "I am", " me"],
        ["no", "no"],
        [PROSE, "\n", PROSE],
        ["Hello", "\n", "Hello"],
        ["\n", "Hello", "Hello"],
        ["Hello", " world", "\n", "Hello"],
        ["Hello", " world", "\n", "Hello world", " again"],
        [*WORDS, "\n", PROSE[:-12]],
        [*WORDS, " ", *WORDS],
        [*WORDS, PROSE, " Again."],
        ["a", "a b", "c"],
    ],
)
def test_text_that_repeats_itself_stays_as_it_is(chunks: list[str]) -> None:
    assert "".join(passed(chunks)) == "".join(chunks)


@given(text=st.text(alphabet="abc \n", min_size=40).map(lambda each: "Well, " + each), data=st.data())
def test_cumulative_text_is_passed_on_once_wherever_it_grows(text: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.sets(st.integers(3, len(text) - 1), min_size=2)))
    assert "".join(passed([*(text[:end] for end in ends), text])) == text


@given(chunks=st.lists(st.text(alphabet="xyz", min_size=1), min_size=1).map(lambda each: ["start: ", *each]))
def test_text_in_pieces_is_passed_on_at_once(chunks: list[str]) -> None:
    assert passed(chunks) == chunks


def test_cumulative_pieces_are_passed_on_as_soon_as_they_are_told() -> None:
    text = RepeatedText()
    chunks = [*accumulate(WORDS)]
    taken = [[part.content for part in text.take(ContentPart(chunk, None))] for chunk in chunks]
    assert taken == [[WORDS[0]], [], ["".join(WORDS[1:3])], *([word] for word in WORDS[3:])]


def test_other_text_behind_cumulative_text_is_502() -> None:
    with pytest.raises(ApiError, match="'stream: never'"):
        passed(["Hel", "Hello", "Hello world", "Bye"])


def test_long_text_is_not_kept() -> None:
    text = RepeatedText()
    for word in WORDS * 100:
        text.take(ContentPart(word, None))
    kept = [getattr(text, name) for name in RepeatedText.__slots__]
    assert max(len(each) for each in kept if isinstance(each, str)) == BEGINNING_CHARACTERS
    assert text.size == 100 * len(PROSE)
