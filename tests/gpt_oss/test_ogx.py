"""On OGX, the stack starts its engine, and answers are the same as with llama-stack."""

from pathlib import Path

from .support.lessons import report, weather
from .support.stacks import (
    ASKED,
    MODEL,
    STREAMED,
    continued_with,
    leave_before_visible_text,
    streamed,
    trained_stack,
    wait_for_engine,
    weather_call,
)


def test_ogx_stack_answers_and_calls(tmp_path: Path) -> None:
    with trained_stack(tmp_path, "ogx") as stack, stack.client() as client:
        assert MODEL in [model.id for model in client.models.list()]
        wait_for_engine(stack)
        assert streamed(client) == STREAMED
        output = continued_with(client, *weather_call(client), weather(7, "rainy"))
        assert output.output_text == report(7, "rainy", "Oslo")
        assert output.usage is not None
        assert output.usage.input_tokens_details.cached_tokens >= 64
        leave_before_visible_text(stack, "/v1/chat/completions", messages=ASKED)
