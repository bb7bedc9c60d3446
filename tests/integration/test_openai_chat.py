"""The bundled inference provider in a live stack: its models and settings, and the host's chat route."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import RecordedChat, Upstream, UpstreamProcess, logprobs, reasoning, reply, text, tool_call
from tests.support.variants import Json, variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

PROVIDER_DATA = {"llama_stack": "X-LlamaStack-Provider-Data", "ogx": "X-OGX-Provider-Data"}
LISTED = {"shown/echo", "shown/nomic"}
NAME, MODEL = "m", "local/m"
ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A separate model server that is never reset, because the stack may list its models at any time."""
    with UpstreamProcess(tmp_path_factory.mktemp("listing") / "upstream.log") as process:
        process.client.script("nomic", reply(text("not for chats")))
        process.client.script("hidden", reply(text("not for all")))
        yield process.client


@pytest.fixture(scope="module")
def settled(
    host: Host, stack_env: dict[str, str], listing: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack whose provider has most settings set."""

    def settle(config: Json) -> None:
        local = config["providers"]["inference"][0]
        more = {
            "api_key": "sk-config",
            "allowed_models": ["echo", "nomic"],
            "embedding_models": {"nomic": 2},
            "extra_body": {"temperature": 0.25, "top_k": 7},
            "network": {"headers": {"X-Team": "blue"}},
        }
        config["providers"]["inference"] = [local | {"provider_id": "shown", "config": local["config"] | more}]

    folder = tmp_path_factory.mktemp("settled")
    env = {**stack_env, "INFERENCE_URL": listing.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", settle), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def asking(settled: LiveStack) -> Iterator[Wire]:
    """A plain HTTP client of that stack."""
    with Wire(settled) as wire:
        yield wire


def requests_for(listing: Upstream, model: str) -> list[RecordedChat]:
    """Return the chat requests whose last message is `model`."""
    return [record for record in listing.requests("echo") if record.body["messages"][-1]["content"] == model]


# -- models and settings -----------------------------------------------------------


def test_only_allowed_models_are_listed_and_served(settled: LiveStack, asking: Wire) -> None:
    with settled.client() as client:
        found = {model.id: model.to_dict() for model in client.models.list()}
    assert set(found) == LISTED
    kinds = {name: model["custom_metadata"]["model_type"] for name, model in found.items()}  # type: ignore[index]
    assert kinds == {"shown/echo": "llm", "shown/nomic": "embedding"}
    assert error_of(asking.post({"model": "shown/hidden", "input": "x"}), 404)["code"] == "model_not_found"


def test_provider_settings_are_sent_to_the_model_server(asking: Wire, listing: Upstream) -> None:
    assert output_text(asking.create(model="shown/echo", input="one", temperature=0.5)) == "one"
    [record] = requests_for(listing, "one")
    assert (record.headers["authorization"], record.headers["x-team"]) == ("Bearer sk-config", "blue")
    assert (record.body["temperature"], record.body["top_k"]) == (0.5, 7)
    asking.create(model="shown/echo", input="two")
    assert requests_for(listing, "two")[0].body["temperature"] == 0.25


@pytest.mark.parametrize("name", ["openai_chat_api_key", "shown_api_key"])
def test_user_key_replaces_the_configured_api_key(host: Host, asking: Wire, listing: Upstream, name: str) -> None:
    own = {PROVIDER_DATA[host]: json.dumps({name: "sk-own"})}
    answer = asking.http.post("/responses", json={"model": "shown/echo", "input": name}, headers=own)
    assert answer.status_code == 200
    asking.create(model="shown/echo", input=name)
    keys = [record.headers["authorization"] for record in requests_for(listing, name)]
    assert keys == ["Bearer sk-own", "Bearer sk-config"]


def test_user_key_with_line_breaks_is_400(host: Host, asking: Wire, listing: Upstream) -> None:
    own = {PROVIDER_DATA[host]: json.dumps({"openai_chat_api_key": "sk\r\nx-admin: yes"})}
    answer = asking.http.post("/responses", json={"model": "shown/echo", "input": "no header"}, headers=own)
    assert "characters" in error_of(answer, 400)["message"]
    assert requests_for(listing, "no header") == []


def test_embeddings_and_completions_are_served(settled: LiveStack) -> None:
    with settled.client() as client:
        found = client.embeddings.create(model="shown/nomic", input=["one", "three"], dimensions=2)
        assert [each.embedding for each in found.data] == [[3.0, 2.0], [5.0, 2.0]]
        assert found.model == "shown/nomic"
        completion = client.completions.create(model="shown/echo", prompt="Once upon")
        assert (completion.choices[0].text, completion.model) == ("Once upon", "shown/echo")


# -- the host's chat route ---------------------------------------------------------

CALL = tool_call(0, "call_a", "f", '{"a"', ": 1}")
SAID = reply(reasoning("Hm", "m."), logprobs(("Yes", -0.5), (".", -1.0), top=[("No", -2.0)]), CALL)


def test_host_chat_route_streams_the_chunks_of_the_provider(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    """The chunks of both providers, as the host forwards them."""
    upstream.script(NAME, SAID)
    model = f"{provider}/{NAME}"
    stream = client.chat.completions.create(
        **ASKED | {"model": model}, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert {chunk.model for chunk in chunks} == {model}
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hmm."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (calls[0].id, calls[0].function.name) == ("call_a", "f")
    assert "".join(call.function.arguments or "" for call in calls) == '{"a": 1}'
    tokens = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or ()
    ]
    assert [(token.token, token.top_logprobs[0].token) for token in tokens] == [("Yes", "No"), (".", "No")]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [len(SAID.chunks)]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"


def test_host_chat_route_returns_an_unstreamed_answer(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script(NAME, SAID)
    answer = client.chat.completions.create(**ASKED | {"model": f"{provider}/{NAME}"})
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == ("Yes.", "tool_calls")
    assert message.tool_calls is not None
    assert message.tool_calls[0].to_dict()["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_host_chat_route_client_disconnect_ends_the_generation(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Half an ", "answer"), end="hang"))
    address = f"{stack.base_url}/v1/chat/completions"
    with httpx.stream(
        "POST", address, json=ASKED | {"stream": True}, timeout=60, trust_env=False, verify=False
    ) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces)
    wait_until(lambda: upstream.requests(NAME)[0].ended == "client_gone")


# -- fields that the host's types refuse --------------------------------------------------


def test_fields_unknown_to_the_host_reach_the_model_server(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Yes.")))
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}
    image = {
        "type": "input_image",
        "image_url": ONE_PIXEL,
        "detail": "original",
    }
    wire.create(
        model=MODEL,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}, audio, image]}],
        reasoning={"effort": "max"},
        service_tier="priority",
        top_k=5,
    )
    [record] = upstream.requests(NAME)
    assert record.body["reasoning_effort"] == "max"
    assert (record.body["service_tier"], record.body["top_k"]) == ("priority", 5)
    parts = {part["type"]: part for part in record.body["messages"][0]["content"]}
    assert parts["input_audio"]["input_audio"] == audio["input_audio"]
    assert parts["image_url"]["image_url"]["detail"] == "high", "'original' is a detail of responses only"
