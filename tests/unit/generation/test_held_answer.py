"""What passes while an answer is held back until it is known to be right."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.chat.adaptation.enforced import Expectation
from llama_stack_responses.generation.held_answer import HeldAnswer
from llama_stack_responses.stream.deltas import Finish, Refusal, Text
from llama_stack_responses.stream.usage import Usage


async def unfit(text: str, schema: dict[str, Any]) -> str:
    """Return that no text is right."""
    return "it is not."


async def test_refusal_of_the_model_is_its_answer() -> None:
    for expectation in (Expectation(call=True), Expectation(schema={"type": "object"})):
        held = HeldAnswer(expectation, unfit, Usage())
        passed = [each for delta in (Text(" "), Refusal("no"), Finish("stop")) async for each in held.feed(delta)]
        assert passed == [Text(" "), Refusal("no"), Finish("stop")]
