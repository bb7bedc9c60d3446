"""Requests of rounds are shortened to the model's context, as it is known or as the model server reports it."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from typing import Any

import pytest

from llama_stack_responses.chat.context_errors import too_long
from llama_stack_responses.chat.estimate import estimated_tokens
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError, TooLongError
from llama_stack_responses.generation import loop
from tests.support.generation_harness import COMPLETED, GenerationHarness
from tests.support.inference import Round, Step, call, chunk, finish, text
from tests.support.waiting import until

Json = dict[str, Any]

TURNS = [
    {"role": role, "content": f"{role} {number} {'word ' * 76}"}
    for number in range(8)
    for role in ("user", "assistant")
]
"""Sixteen messages of about 100 estimated tokens."""
QUESTION = {"role": "user", "content": "And now?"}
ANSWER: list[Step] = [text("Hello"), finish()]
DEAR = "This model's maximum context length is {} tokens. However, your request has {} input tokens."


class Conversation(GenerationHarness):
    """A question at the end of a long conversation."""

    def __init__(self, *rounds: Round, length: int | None = None, **fields: Any) -> None:
        request = {"input": [*TURNS, QUESTION], "truncation": "auto", "instructions": "Be kind."} | fields
        super().__init__(*rounds, makers={}, **request)
        self.inference.length = length

    @property
    def seen(self) -> list[list[str]]:
        """The first two words of each message that the model received, request by request."""
        return [
            [" ".join((message["content"] or "").split()[:2]) for message in request["messages"]]
            for request in self.inference.requests
        ]

    @property
    def sizes(self) -> list[int]:
        """The estimated sizes of the requests, in tokens."""
        return [estimated_tokens(request) for request in self.inference.requests]


async def test_request_that_fits_is_sent_whole() -> None:
    harness = Conversation(ANSWER, length=10_000)
    assert await harness.generation.run() == COMPLETED
    assert len(harness.seen[0]) == 18


async def test_oldest_turns_are_left_out_of_long_request() -> None:
    harness = Conversation(ANSWER, length=1_000)
    assert await harness.generation.run() == COMPLETED
    assert harness.seen == [
        ["Be kind.", *(f"{role} {number}" for number in (4, 5, 6, 7) for role in ("user", "assistant")), "And now?"]
    ]
    assert 675 <= harness.sizes[0] <= 875  # an eighth is for the answer, and one more turn would exceed the rest


async def test_context_fit_reserves_max_output_tokens() -> None:
    harness = Conversation(ANSWER, length=1_000, max_output_tokens=400)
    assert await harness.generation.run() == COMPLETED
    assert harness.sizes[0] <= 600
    greedy = Conversation(ANSWER, length=1_000, max_output_tokens=100_000)
    assert await greedy.generation.run() == COMPLETED
    assert 300 <= greedy.sizes[0] <= 500


async def test_context_length_of_profile_is_used() -> None:
    harness = Conversation(ANSWER, profile=Profile(context_length=1_000))
    assert await harness.generation.run() == COMPLETED
    assert harness.sizes[0] <= 875


async def test_token_count_of_model_server_corrects_estimate() -> None:
    harness = Conversation(ANSWER, length=1_000)
    harness.inference.count = lambda request: 2 * estimated_tokens(request)
    assert await harness.generation.run() == COMPLETED
    assert 200 <= harness.sizes[0] <= 437


async def test_refusal_with_token_counts_is_retried_once_shorter() -> None:
    harness = Conversation(too_long(DEAR.format(2_000, 3_600)), ANSWER)
    assert await harness.generation.run() == COMPLETED
    first, second = harness.sizes
    assert second <= first * 1_750 / 3_600
    assert len(harness.seen[0]) == 18


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_answer_for_which_the_context_has_no_room_is_bounded_by_what_the_input_leaves(truncation: str) -> None:
    refusal = too_long(DEAR.format(9_000, 2_000))
    harness = Conversation(refusal, ANSWER, truncation=truncation, max_output_tokens=8_000)
    assert await harness.generation.run() == COMPLETED
    assert [request["max_completion_tokens"] for request in harness.inference.requests] == [8_000, 7_000]
    assert harness.seen[0] == harness.seen[1]


async def test_input_that_leaves_hardly_any_room_is_shortened_rather_than_its_answer() -> None:
    harness = Conversation(too_long(DEAR.format(2_000, 1_900)), ANSWER, max_output_tokens=1_000)
    assert await harness.generation.run() == COMPLETED
    assert [request["max_completion_tokens"] for request in harness.inference.requests] == [1_000, 1_000]
    assert len(harness.seen[1]) < len(harness.seen[0])


async def test_input_of_which_the_server_counts_only_a_part_leaves_less_for_the_answer_with_each_refusal() -> None:
    """vLLM stops counting where the input and the bound on the answer exceed the context."""

    def refused(bound: int) -> TooLongError:
        words = "However, you requested {} output tokens and your prompt contains at least {} input tokens"
        return too_long(f"This model's maximum context length is 131072 tokens. {words.format(bound, 131_073 - bound)}")

    bounds = [128_000, 127_999, 119_806, 95_229]
    harness = Conversation(*map(refused, bounds[:-1]), ANSWER, max_output_tokens=128_000)
    assert await harness.generation.run() == COMPLETED
    assert [request["max_completion_tokens"] for request in harness.inference.requests] == bounds
    endless = Conversation(*map(refused, [*bounds, *[128_000] * 20]), max_output_tokens=128_000)
    with pytest.raises(TooLongError):
        await endless.generation.run()
    assert len(endless.inference.requests) < 20


async def test_bounded_answer_that_is_refused_again_is_not_bounded_twice_in_the_same_way() -> None:
    harness = Conversation(*[too_long(DEAR.format(9_000, 2_000))] * 20, max_output_tokens=8_000)
    with pytest.raises(TooLongError):
        await harness.generation.run()
    assert len(harness.inference.requests) < 20


async def test_refusal_without_token_counts_is_retried_shorter_until_accepted() -> None:
    refusal = TooLongError("Your input exceeds the context window of this model.")
    harness = Conversation(refusal, refusal, refusal, ANSWER)
    assert await harness.generation.run() == COMPLETED
    sizes = harness.sizes
    assert all(later <= 0.7 * earlier for earlier, later in pairwise(sizes))
    assert harness.seen[-1][0] == "Be kind."
    assert harness.seen[-1][-1] == "And now?"


@pytest.mark.parametrize("message", ["Your input exceeds the context window.", DEAR.format(100, 50)])
async def test_request_that_never_fits_is_refused_after_few_retries(message: str) -> None:
    harness = Conversation(*[too_long(message)] * 20)
    with pytest.raises(TooLongError):
        await harness.generation.run()
    assert harness.seen[-1] == ["Be kind.", "And now?"]
    assert len(harness.seen) < 12


def full(tokens: int, used: int = 0) -> list[Step]:
    """Return a round that ends at once since the context is full."""
    return [chunk({}, finish_reason="length", usage={"prompt_tokens": tokens, "completion_tokens": used})]


async def test_answer_without_room_is_retried_shorter_by_the_reported_usage() -> None:
    harness = Conversation(full(3_000), ANSWER, profile=Profile(context_length=3_000))
    assert await harness.generation.run() == COMPLETED
    first, second = harness.sizes
    assert first < 2_625, "the estimate lets it pass"
    assert second <= first * 2_625 / 3_000


async def test_answer_without_room_is_too_long_without_truncation() -> None:
    harness = Conversation(full(2_990, 10), length=3_000, truncation="disabled")
    with pytest.raises(TooLongError) as refused:
        await harness.generation.run()
    assert (refused.value.length, refused.value.tokens, refused.value.code) == (
        3_000,
        2_990,
        "context_length_exceeded",
    )


@pytest.mark.parametrize("round_", [full(2_900), [text("Hel"), *full(3_000)], full(0)])
async def test_answer_that_was_cut_elsewhere_is_incomplete(round_: list[Step]) -> None:
    harness = Conversation(round_, length=3_000)
    assert (await harness.generation.run()).status == "incomplete"


async def test_disabled_truncation_sends_whole_request_once() -> None:
    harness = Conversation(too_long(DEAR.format(2_000, 3_600)), length=1_000, truncation="disabled")
    with pytest.raises(TooLongError):
        await harness.generation.run()
    assert [len(seen) for seen in harness.seen] == [18]


async def test_every_round_of_long_turn_fits_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier rounds of hosted calls are left out one by one, each call together with its output."""
    monkeypatch.setattr(loop, "_UNKNOWN_ROUNDS", 9)
    rounds = [[chunk({"content": "word " * 76}), call("h", "1"), finish("tool_calls")] for _ in range(6)]
    harness = Conversation(*rounds, ANSWER, length=800, input=[*TURNS[:2], QUESTION])
    assert await harness.generation.run() == COMPLETED
    assert max(harness.sizes) <= 700
    for request in harness.inference.requests[1:]:
        roles = [message["role"] for message in request["messages"]]
        assert roles.count("tool") == sum(len(message.get("tool_calls", ())) for message in request["messages"])
        assert "And now?" in [message["content"] for message in request["messages"]]
    assert harness.seen[0][1] == "user 0"
    assert harness.seen[-1][1] == "And now?"


async def test_refusal_after_chunk_without_output_is_retried() -> None:
    harness = Conversation([chunk({"role": "assistant"}), too_long(DEAR.format(2_000, 3_600))], ANSWER)
    assert await harness.generation.run() == COMPLETED
    assert len(harness.seen[1]) < len(harness.seen[0])


def held_requests() -> int:
    """Return how many chat requests this process holds."""
    return sum(type(each) is dict and "messages" in each and "model" in each for each in gc.get_objects())


async def test_request_is_held_until_the_answer_begins() -> None:
    gc.collect()
    before, begins, goes_on = held_requests(), asyncio.Event(), asyncio.Event()
    harness = Conversation([chunk({"role": "assistant"}), begins, text("Hel"), goes_on, *ANSWER])
    work = asyncio.create_task(harness.generation.run())
    await until(lambda: harness.inference.sent == 1)
    harness.inference.requests.clear()
    assert held_requests() == before + 1
    begins.set()
    await until(lambda: harness.inference.sent == 2)
    assert held_requests() == before
    goes_on.set()
    assert await work == COMPLETED


async def test_refusal_after_first_delta_is_not_retried() -> None:
    """A refusal in the middle of an answer cannot be retried."""
    harness = Conversation([text("Hel"), too_long(DEAR.format(2_000, 3_600))], ANSWER)
    with pytest.raises(ApiError, match="maximum context"):
        await harness.generation.run()
    assert len(harness.seen) == 1
