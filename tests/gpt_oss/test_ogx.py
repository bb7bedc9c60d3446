"""On OGX: the stack starts its engine, and the conversation is the one that llama-stack has."""

from pathlib import Path

from .support.lessons import report, weather
from .support.stacks import MODEL, STREAMED, asked_for_weather, health, streamed, told_the_weather, trained_stack


def test_reasoning_an_answer_and_a_call(tmp_path: Path) -> None:
    with trained_stack(tmp_path, "ogx") as stack, stack.client() as client:
        assert MODEL in [model.id for model in client.models.list()]
        assert health(stack) == {"status": "OK"}
        assert streamed(client) == STREAMED
        told = told_the_weather(client, *asked_for_weather(client), weather(7, "rainy"))
        assert told.output_text == report(7, "rainy", "Oslo")
        assert told.usage is not None
        assert told.usage.input_tokens_details.cached_tokens >= 64
