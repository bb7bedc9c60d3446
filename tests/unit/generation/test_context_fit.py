"""Rounds that are made to fit the model's context, by what is known of it or by what the model server says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from llama_stack_responses.chat.estimate import estimated_tokens
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.chat.refusals import too_long
from llama_stack_responses.core.errors import ApiError, TooLongError
from llama_stack_responses.generation.context_lengths import ContextLengths
from tests.support.inference import FakeInference, Round, Step, call, chunk, finish, text
from tests.support.setting import COMPLETED, Setting

Json = dict[str, Any]

TURNS = [
    {"role": role, "content": f"{role} {number} {'word ' * 76}"}
    for number in range(8)
    for role in ("user", "assistant")
]
"""Sixteen messages of 100 tokens, as they are estimated."""
QUESTION = {"role": "user", "content": "And now?"}
ANSWER: list[Step] = [text("Hello"), finish()]
DEAR = "This model's maximum context length is {} tokens. However, your request has {} input tokens."


class Conversation(Setting):
    """A question at the end of a long conversation."""

    def __init__(self, *rounds: Round, length: int | None = None, **fields: Any) -> None:
        asked = {"input": [*TURNS, QUESTION], "truncation": "auto", "instructions": "Be kind."} | fields
        super().__init__(*rounds, makers={}, **asked)
        self.inference.length = length

    @property
    def seen(self) -> list[list[str]]:
        """The first words of what the model saw, request by request."""
        return [
            [" ".join((message["content"] or "").split()[:2]) for message in request["messages"]]
            for request in self.inference.requests
        ]

    @property
    def sizes(self) -> list[int]:
        """The estimated sizes of the requests."""
        return [estimated_tokens(request) for request in self.inference.requests]


async def test_what_fits_is_sent_whole() -> None:
    setting = Conversation(ANSWER, length=10_000)
    assert await setting.turn.run() == COMPLETED
    assert len(setting.seen[0]) == 18


async def test_the_oldest_turns_are_left_out() -> None:
    setting = Conversation(ANSWER, length=1_000)
    assert await setting.turn.run() == COMPLETED
    assert setting.seen == [
        ["Be kind.", *(f"{role} {number}" for number in (4, 5, 6, 7) for role in ("user", "assistant")), "And now?"]
    ]
    assert 675 <= setting.sizes[0] <= 875  # an eighth is for the answer, and one turn more would be too many


async def test_the_answer_has_the_place_that_it_may_need() -> None:
    setting = Conversation(ANSWER, length=1_000, max_output_tokens=400)
    assert await setting.turn.run() == COMPLETED
    assert setting.sizes[0] <= 600
    greedy = Conversation(ANSWER, length=1_000, max_output_tokens=100_000)
    assert await greedy.turn.run() == COMPLETED
    assert 300 <= greedy.sizes[0] <= 500


async def test_a_profile_knows_the_context() -> None:
    setting = Conversation(ANSWER, profile=Profile(context_length=1_000))
    assert await setting.turn.run() == COMPLETED
    assert setting.sizes[0] <= 875


async def test_the_model_servers_own_count_corrects_the_estimate() -> None:
    setting = Conversation(ANSWER, length=1_000)
    setting.inference.count = lambda request: 2 * estimated_tokens(request)
    assert await setting.turn.run() == COMPLETED
    assert 200 <= setting.sizes[0] <= 437


async def test_a_refusal_with_numbers_is_enough_to_fit() -> None:
    setting = Conversation(too_long(DEAR.format(2_000, 3_600)), ANSWER)
    assert await setting.turn.run() == COMPLETED
    first, second = setting.sizes
    assert second <= first * 1_750 / 3_600
    assert len(setting.seen[0]) == 18


async def test_a_refusal_without_numbers_is_tried_again_shorter() -> None:
    refusal = TooLongError("Your input exceeds the context window of this model.")
    setting = Conversation(refusal, refusal, refusal, ANSWER)
    assert await setting.turn.run() == COMPLETED
    sizes = setting.sizes
    assert all(later <= 0.7 * earlier for earlier, later in pairwise(sizes))
    assert setting.seen[-1][0] == "Be kind."
    assert setting.seen[-1][-1] == "And now?"


@pytest.mark.parametrize("message", ["Your input exceeds the context window.", DEAR.format(100, 50)])
async def test_what_never_fits_is_refused_in_the_end(message: str) -> None:
    setting = Conversation(*[too_long(message)] * 20)
    with pytest.raises(TooLongError):
        await setting.turn.run()
    assert setting.seen[-1] == ["Be kind.", "And now?"]
    assert len(setting.seen) < 12


async def test_without_truncation_nothing_is_left_out_and_nothing_tried_again() -> None:
    setting = Conversation(too_long(DEAR.format(2_000, 3_600)), length=1_000, truncation="disabled")
    with pytest.raises(TooLongError):
        await setting.turn.run()
    assert [len(seen) for seen in setting.seen] == [18]


async def test_each_round_fits() -> None:
    """Calls that this server answers, in one long turn: their rounds go one by one, each with its output."""
    rounds = [[chunk({"content": "word " * 76}), call("h", "1"), finish("tool_calls")] for _ in range(6)]
    setting = Conversation(*rounds, ANSWER, length=800, input=[*TURNS[:2], QUESTION])
    assert await setting.turn.run() == COMPLETED
    assert max(setting.sizes) <= 700
    for request in setting.inference.requests[1:]:
        roles = [message["role"] for message in request["messages"]]
        assert roles.count("tool") == sum(len(message.get("tool_calls", ())) for message in request["messages"])
        assert "And now?" in [message["content"] for message in request["messages"]]
    assert setting.seen[0][1] == "user 0"
    assert setting.seen[-1][1] == "And now?"


async def test_what_was_begun_is_not_begun_again() -> None:
    """A refusal in the middle of an answer cannot be undone."""
    setting = Conversation([text("Hel"), too_long(DEAR.format(2_000, 3_600))], ANSWER)
    with pytest.raises(ApiError, match="maximum context"):
        await setting.turn.run()
    assert len(setting.seen) == 1


# What is remembered


async def test_a_refusal_is_remembered_for_an_hour() -> None:
    now = 100.0
    inference = FakeInference()
    lengths = ContextLengths(inference, lambda: now)
    profile = Profile(context_length=8_000)
    assert await lengths.of("m", profile) == 8_000
    lengths.learn("m", 4_000)
    assert await lengths.of("m", profile) == 4_000
    assert await lengths.of("other", Profile()) is None
    now += 3_601
    assert await lengths.of("m", profile) == 8_000
    inference.length = 2_000
    assert await lengths.of("m", Profile()) == 2_000


async def test_what_is_remembered_is_bounded() -> None:
    lengths = ContextLengths(FakeInference())
    for number in range(1_001):
        lengths.learn(f"m{number}", 10)
    assert await lengths.of("m0", Profile()) is None
    assert await lengths.of("m1", Profile()) == 10
