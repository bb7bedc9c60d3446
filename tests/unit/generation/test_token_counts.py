"""Which source counts the tokens of a request: the model server, a tokenizer, or an estimate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from llama_stack_responses.chat.estimate import estimated_tokens
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.generation.token_counts import TokenCounts
from tests.support.inference import FakeInference


def chat(text: str, model: str = "local/words") -> dict[str, Any]:
    """Return a request of one message: 7 tokens and those of its text."""
    return {"model": model, "messages": [{"role": "user", "content": text}]}


@pytest.fixture
def profiles(tmp_path: Path) -> list[Profile]:
    """One model whose tokenizer has one token per word."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    return [Profile(match="local/words", tokenizer=str(tmp_path / "words.json"))]


@pytest.mark.parametrize("words", [1, 3, 50_000])
async def test_tokenizer_of_profile_counts_tokens(words: int, profiles: list[Profile]) -> None:
    counts = TokenCounts(FakeInference(), profiles)
    assert await counts.of(chat("word " * words)) == 7 + words


async def test_count_of_model_server_takes_precedence(profiles: list[Profile]) -> None:
    inference = FakeInference()
    inference.count = lambda _: 5
    assert await TokenCounts(inference, profiles).of(chat("one two three")) == 5
    inference.count = lambda _: 0
    assert await TokenCounts(inference, profiles).of(chat("one two three")) == 0


async def test_count_without_tokenizer_is_estimated(profiles: list[Profile]) -> None:
    other = chat("one two three", "local/other")
    assert await TokenCounts(FakeInference(), profiles).of(other) == estimated_tokens(other)


def test_missing_tokenizer_file_stops_server() -> None:
    with pytest.raises(ValueError, match="there is no file"):
        TokenCounts(FakeInference(), [Profile(tokenizer="nowhere/tokenizer.json")])


@pytest.mark.parametrize("characters", [4_000, 40_000])
async def test_tokenizer_runs_outside_event_loop(
    characters: int, profiles: list[Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def count(text: str) -> int:
        threads.append(threading.get_ident())
        return len(text)

    def opened(_: str) -> Callable[[str], int]:
        return count

    monkeypatch.setattr("llama_stack_responses.generation.token_counts.open_tokenizer", opened)
    await TokenCounts(FakeInference(), profiles).of(chat("x" * characters))
    assert threads
    assert threading.get_ident() not in threads


async def test_oversized_text_is_estimated(profiles: list[Profile]) -> None:
    long = chat("word " * 2_000_000)
    assert await TokenCounts(FakeInference(), profiles).of(long) == estimated_tokens(long)
