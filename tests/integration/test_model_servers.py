"""Real model servers behind the stack: each with the bundled provider, and with the host's own for vLLM and OpenAI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.doctor.checks import CHECKS
from tests.support.model_servers import MODEL_SERVERS, ModelServer
from tests.support.openai_client import Json, create, stored, stream
from tests.support.server_findings import column_of, disagreements, documented, examine
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.variants import add_host_provider, variant

pytestmark = [pytest.mark.live, pytest.mark.whole_run]

PROVIDERS: Final = ("local", "vllm", "openai")
"""The bundled provider, and `remote::vllm` and `remote::openai` of the host."""
ON_BOTH: Final = ("llama.cpp", "vllm")
"""The servers that the providers of both hosts are tried with; the others differ from these in what the model does.

So those, transformers, LiteLLM and vLLM with Mistral, are not run with the providers of OGX.
"""
SHORT: Final[Json] = {"temperature": 0, "max_output_tokens": 24}
FORCED: Final[Json] = {"temperature": 0, "max_output_tokens": 200}
"""Room for what a grammar makes a model write."""
COLOR: Final[Json] = {"type": "string", "enum": ["red", "blue"]}
PAINT: Final[Json] = {
    "type": "object",
    "properties": {"color": COLOR},
    "required": ["color"],
    "additionalProperties": False,
}
TOOL: Final = {"type": "function", "name": "paint", "description": "Paint it.", "parameters": PAINT, "strict": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all model servers."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in ON_BOTH else pytest.mark.one_host) for name in MODEL_SERVERS],
)
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[ModelServer]:
    """A real model server."""
    with MODEL_SERVERS[request.param](folder) as running:
        yield running


def add_providers(config: Json) -> None:
    """Add the host's own providers for the model server."""
    add_host_provider(config)
    [local, *_] = config["providers"]["inference"]
    of_host = {"base_url": local["config"]["base_url"], "api_key": local["config"]["api_key"], "refresh_models": True}
    found = {"provider_id": "openai", "provider_type": "remote::openai", "config": of_host}
    config["providers"]["inference"].append(found)


@pytest.fixture(scope="module")
def client(
    host: Host, stack_env: dict[str, str], server: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """An OpenAI client of a stack over the model server."""
    folder: Path = tmp_path_factory.mktemp("stack")
    config = variant(STARTER, folder / "config.yaml", add_providers)
    env = {**stack_env, "INFERENCE_URL": server.url, "INFERENCE_API_KEY": server.key}
    with LiveStack(config, env, folder / "state", host=host) as live, live.client() as client:
        yield client


@pytest.fixture(params=PROVIDERS)
def model(request: pytest.FixtureRequest, server: ModelServer) -> str:
    """The name of the server's model, with one of the providers."""
    return f"{request.param}/{server.model}"


def items(response: Json, kind: str) -> list[Json]:
    """Return the items of a type in a response."""
    return [item for item in response["output"] if item["type"] == kind]


def test_turns_of_a_chain_are_answered_streamed_and_whole(
    client: openai.OpenAI, model: str, server: ModelServer
) -> None:
    first = stream(client, model=model, input="Say hello to Ada.", instructions="Be kind.", **SHORT)
    assert first.response["status"] in {"completed", "incomplete"}
    kind = "reasoning" if server.reasons else "message"
    assert items(first.response, kind)
    assert stored(client, first.response["id"]) == first.response
    second = create(client, model=model, input="And to Bob.", previous_response_id=first.response["id"], **SHORT)
    assert items(second, kind)
    before, after = (each["usage"]["input_tokens"] for each in (first.response, second))
    assert after > before > 0


def test_call_of_a_tool_is_made_and_answered(client: openai.OpenAI, model: str, server: ModelServer) -> None:
    if server.forces_calls:
        required: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        asked = stream(client, model=model, input="Paint it.", **required, **FORCED).response
        [call] = items(asked, "function_call")
        assert (call["name"], json.loads(call["arguments"])["color"] in COLOR["enum"]) == ("paint", True)
        context: Any = {"previous_response_id": asked["id"]}
    else:
        call = {"type": "function_call", "call_id": "call_of_a_client", "name": "paint", "arguments": '{"color":"red"}'}
        context = {}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Painted."}
    sent = [output] if context else [{"role": "user", "content": "Paint it."}, call, output]
    answered = create(client, model=model, input=sent, tools=[TOOL], tool_choice="none", **context, **SHORT)
    assert items(answered, "reasoning" if server.reasons else "message")


def test_structured_answer_has_the_form_of_its_schema(client: openai.OpenAI, model: str, server: ModelServer) -> None:
    if not server.forces_schemas:
        return
    schema = {"type": "json_schema", "name": "paint", "schema": PAINT, "strict": True}
    answer = stream(client, model=model, input="Which color?", text={"format": schema}, **FORCED).response
    [message] = items(answer, "message")
    assert json.loads(message["content"][0]["text"])["color"] in COLOR["enum"]


def test_turns_that_do_not_alternate_are_answered(client: openai.OpenAI, model: str, server: ModelServer) -> None:
    """The template of Mistral refuses them, and system messages that are not the first."""
    said = [("user", "One."), ("user", "Two."), ("developer", "Count."), ("assistant", "Three."), ("user", "Four.")]
    sent: Any = [{"role": role, "content": content} for role, content in said]
    response = create(client, model=model, input=sent, **SHORT)
    assert items(response, "reasoning" if server.reasons else "message")


@pytest.mark.one_host
@pytest.mark.timeout(1800)
def test_doctor_finds_what_the_guide_says_of_the_server(server: ModelServer, request: pytest.FixtureRequest) -> None:
    """A small model does not always do the same, so a server is examined again before it counts."""
    said = documented().get(request.node.callspec.params["server"])
    reports = [examine(server)]
    if said and disagreements(said, column_of(reports)):
        reports.append(examine(server))
    assert not said or disagreements(said, column_of(reports)) == {}
    assert {finding.name for finding in reports[0].findings} == {check.name for check in CHECKS}
    profile = reports[0].profile
    assert profile is None or ResponsesConfig(profiles=[profile]).profiles
