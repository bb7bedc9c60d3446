"""The templates for gpt-oss on another server: reasoning and tool calls, as vLLM and llama.cpp transport them.

vLLM sends and reads reasoning in the field `reasoning`, llama.cpp in `reasoning_content`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import openai
import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import create, function, stream
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

TOOLS: Final = [function("weather", "city")]
PICTURE: Final = [
    {
        "role": "user",
        "content": [
            {
                "type": "input_image",
                "image_url": ONE_PIXEL,
            }
        ],
    }
]


@dataclass(frozen=True)
class GptOssStack:
    """A stack of a template, the model's name on its server, and the server's field for reasoning."""

    stack: LiveStack
    name: str
    field: str

    @property
    def model(self) -> str:
        return f"gpt-oss/{self.name}"


@pytest.fixture(
    scope="module",
    params=[("gpt-oss-vllm", "gpt-oss-120b", "reasoning"), ("gpt-oss-llama-cpp", "gpt-oss-20b", "reasoning_content")],
    ids=["vllm", "llama-cpp"],
)
def served(
    request: pytest.FixtureRequest,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GptOssStack]:
    template, name, field = request.param
    upstream_process.client.script(name, reply(text("Hi")))  # the server lists it from the start
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    config = REPOSITORY / "templates" / template / "config.yaml"
    with LiveStack(config, env, tmp_path_factory.mktemp(template), host=host) as live, live.client() as client:
        wait_until(lambda: f"gpt-oss/{name}" in [each.id for each in client.models.list()])
        yield GptOssStack(live, name, field)


@pytest.fixture
def client(served: GptOssStack, upstream: Upstream) -> Iterator[openai.OpenAI]:
    with served.stack.client() as created:
        yield created


def test_reasoning_returns_to_the_model_after_a_tool_call(
    served: GptOssStack, client: openai.OpenAI, upstream: Upstream
) -> None:
    """Without it, gpt-oss forgets why it made the call."""
    thought = reasoning("I need ", "the weather.", field=served.field)
    call = tool_call(0, "c1", "weather", '{"city":', ' "Oslo"}')
    upstream.script(
        served.name, [reply(thought, call), reply(reasoning("Snow.", field=served.field), text("It snows."))]
    )
    asked: Any = {"model": served.model, "tools": TOOLS, "reasoning": {"effort": "high"}}
    first = stream(client, input="Oslo?", **asked)
    assert first.texts("reasoning_text") == ["I need ", "the weather."]
    called = first.response["output"][-1]
    assert (called["name"], called["arguments"]) == ("weather", '{"city": "Oslo"}')
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "Snow."}
    second = create(client, input=[output], previous_response_id=first.response["id"], **asked)
    assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
    sent = upstream.requests(served.name)[-1].body
    assert sent["reasoning_effort"] == "high"
    assert sent.get("max_tokens") is None  # nothing cuts the answer
    [assistant] = [each for each in sent["messages"] if each["role"] == "assistant"]
    other = {"reasoning", "reasoning_content"} - {served.field}
    assert assistant[served.field] == "I need the weather."
    assert not other & assistant.keys()


def test_image_is_refused_before_the_server_gets_it(served: GptOssStack, upstream: Upstream) -> None:
    """gpt-oss reads text only."""
    upstream.script(served.name, reply(text("Hi")))
    with Wire(served.stack) as wire:
        error = error_of(wire.post({"model": served.model, "input": PICTURE}), 400)
    assert "image" in error["message"]
    assert upstream.requests(served.name) == []
