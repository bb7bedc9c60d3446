"""The `prompt_cache_diagnostics` of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.chat.prompt_comparison import Prompt
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.generation.cache_diagnostics import CacheDiagnostics, FirstPrompt, no_prompt
from llama_stack_responses.inputs.history import Hold, StoredPrompt
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.response import new_response

type Json = dict[str, Any]

UNAVAILABLE: Final = {"type": "unavailable"}
HIT: Final = {"type": "cache_hit"}
ITEMS: Final[list[Json]] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]


def answered(input_tokens: int, cached_tokens: int = 0) -> Sequence[Any]:
    return (0, 1, 2, input_tokens, 5, cached_tokens, "answer")


def response(**fields: Any) -> Json:
    request = parse_create({"model": "m", "input": "Hi", **fields})
    return new_response(request, id="resp_1", created_at=1) | {"status": "completed"}


def diagnostics(prompt_of: Any) -> CacheDiagnostics:
    return CacheDiagnostics("resp_0", ANONYMOUS, prompt_of, Profile(), LargeWork(), lambda _: None)


async def diagnosed(compared: StoredPrompt, current: Json, *rounds: Sequence[Any]) -> Json:
    async def prompt_of(response_id: str, owner: Owner, hold: Hold | None) -> StoredPrompt:
        assert (response_id, owner) == ("resp_0", ANONYMOUS)
        return compared

    return await diagnostics(prompt_of).of(current, ITEMS, rounds)


async def test_unknown_response_is_not_found() -> None:
    found = await diagnostics(no_prompt).of(response(), ITEMS, [answered(10, 10)])
    assert found == {"type": "comparison_response_not_found"}


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
async def test_response_without_an_answer_cannot_be_compared(status: str) -> None:
    compared = StoredPrompt(Prompt(response() | {"status": status}, ITEMS))
    assert await diagnosed(compared, response(), answered(10, 10)) == UNAVAILABLE


async def test_error_of_the_store_makes_the_comparison_unavailable() -> None:
    async def prompt_of(*_: object) -> StoredPrompt:
        raise ApiError(503, "The store is unavailable.")

    assert await diagnostics(prompt_of).of(response(), ITEMS, []) == UNAVAILABLE


async def test_equal_prompt_is_a_hit_if_the_model_server_reports_reuse() -> None:
    compared = StoredPrompt(Prompt(response() | {"status": "incomplete"}, ITEMS), [answered(1000)])
    assert await diagnosed(compared, response(), answered(1000, 16)) == HIT
    assert await diagnosed(compared, response(), answered(1000, 0)) == UNAVAILABLE
    assert await diagnosed(compared, response()) == UNAVAILABLE


async def test_difference_is_a_miss_with_the_tokens_that_the_model_server_counted() -> None:
    compared = StoredPrompt(Prompt(response(), ITEMS), [answered(900)])
    missed = await diagnosed(compared, response(prompt_cache_key="k"), answered(1000, 10))
    assert missed == {
        "type": "cache_miss",
        "reason": "prompt_cache_key_changed",
        "cache_missed_tokens": 1000,
        "comparison_reusable_tokens": 900,
    }


async def test_tokens_are_estimated_if_nobody_counted_them() -> None:
    instructions = "word " * 400
    compared = StoredPrompt(Prompt(response(), ITEMS))
    missed = await diagnosed(compared, response(instructions=instructions))
    assert missed.keys() == {"type", "reason", "cache_missed_tokens"}
    assert missed["cache_missed_tokens"] == pytest.approx(500, rel=0.1)


async def test_reuse_that_the_model_server_reports_decides() -> None:
    compared = StoredPrompt(Prompt(response(), ITEMS), [answered(900)])
    changed = response(text={"format": {"type": "json_object"}})
    assert await diagnosed(compared, changed, answered(1000, 896)) == HIT
    assert (await diagnosed(compared, changed, answered(1000, 512)))["reason"] == "text_format_changed"
    unknown = StoredPrompt(Prompt(response(), ITEMS))
    assert (await diagnosed(unknown, changed, answered(1000, 896)))["type"] == "cache_miss"


async def test_compaction_before_the_answer_is_a_miss() -> None:
    compared = StoredPrompt(Prompt(response(), ITEMS), [answered(900)])
    compaction = (0, 1, 2, 900, 5, 0, "compaction")
    missed = await diagnosed(compared, response(), compaction, answered(200, 0))
    assert (missed["reason"], missed["cache_missed_tokens"]) == ("context_compacted", 200)


ROUNDS: Final = {
    "none": ((), FirstPrompt()),
    "refused": ([(0, None, 1, 0, 0, 0, "answer"), answered(5, 4), answered(9, 9)], FirstPrompt(5, 4)),
    "interrupted": ([(0, None, 1, None, None, None, "interrupted"), answered(5)], FirstPrompt(5)),
    "compacted": ([(0, 1, 2, 9, 9, 0, "compaction"), answered(5)], FirstPrompt(5, 0, compacted=True)),
    "refused after that": (
        [(0, 1, 2, 9, 9, 0, "compaction"), (2, None, 3, 0, 0, 0, "answer"), answered(5)],
        FirstPrompt(5, 0, compacted=True),
    ),
    "compacted later": ([answered(5), (0, 1, 2, 9, 9, 0, "compaction")], FirstPrompt(5)),
    "recorded with fewer fields": ([(0, 1, 2)], FirstPrompt()),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_first_prompt_is_that_of_the_first_answer(name: str) -> None:
    rounds, expected = ROUNDS[name]
    assert FirstPrompt.of(rounds) == expected
