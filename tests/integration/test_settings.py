"""Configuration: profiles of models, passed-through fields, limits, and retention."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import Json, create, function, messages, stored, stream
from tests.support.seed import DAY, seed
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, finish, reasoning, reply, text, tool_call
from tests.support.variants import records, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire, error_of, output_text

pytestmark = pytest.mark.live

SETTINGS: Final[Json] = {
    "retention_days": 2,
    "sweep_seconds": 0.2,
    "max_swept_share": 1,
    "passthrough": ["top_k", "house_style"],
    "unknown_fields": "ignore",
    "limits": {
        "rounds": 3,
        "input_items": 5,
        "request_bytes": 20_000,
        "websocket": {
            "message_bytes": 10_000,
            "unread_seconds": 1,
            "responses": 1,
            "waiting": 1,
            "streams": 4,
            "remembered_bytes": 14_000,
        },
    },
    "profiles": [
        {
            "match": "local/thinker*",
            "inline_thinking": {"open": "<think>", "close": "</think>"},
            "reasoning_replay": "think_tags",
            "reasoning_context": "all_turns",
        },
        {"match": "local/prompted", "inline_thinking": {"starts_open": True}, "reasoning_replay": "none"},
        {
            "match": "local/strict",
            "system_messages": "merge_all",
            "images": False,
            "files": False,
            "audio": False,
            "max_tokens_field": "max_tokens",
        },
        {
            "match": "local/free",
            "system_messages": "keep",
            "developer_role": "developer",
            "reasoning_replay": "reasoning",
            "tool_media": "tool_message",
        },
    ],
}
TOOLS: Final = [function("look", "where")]
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
IMAGE: Final[Json] = {
    "type": "input_image",
    "image_url": ONE_PIXEL,
}


@dataclass(frozen=True)
class ConfiguredStack:
    """A stack with these settings, whose store had two responses when it started."""

    stack: LiveStack
    old: Json
    young: Json

    @property
    def database(self) -> Path:
        """The file of the response store."""
        return self.stack.state_dir / "responses.db"


@pytest.fixture(scope="module")
def configured(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConfiguredStack]:
    """The starter template with the settings above."""
    folder = tmp_path_factory.mktemp("configured")
    config = variant(STARTER, folder / "config.yaml", lambda config: responses_config(config).update(SETTINGS))
    stack = LiveStack(
        config, {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}, folder / "state", host=host
    )
    stack.state_dir.mkdir()
    database = stack.state_dir / "responses.db"
    [old] = seed(database, [("an old question", "an old answer")], age=2.1 * DAY)
    [young] = seed(database, [("a question", "an answer")], age=1.9 * DAY)
    with stack:
        yield ConfiguredStack(stack, old, young)


@pytest.fixture
def client(configured: ConfiguredStack, upstream: Upstream) -> Iterator[openai.OpenAI]:
    """An OpenAI client of that stack."""
    with configured.stack.client() as client:
        yield client


@pytest.fixture
def wire(configured: ConfiguredStack, upstream: Upstream) -> Iterator[Wire]:
    """A plain HTTP client of that stack."""
    with Wire(configured.stack) as wire:
        yield wire


def shown(response: Json) -> list[tuple[str, str]]:
    """Return the type and the text of each item."""
    return [(item["type"], "".join(part["text"] for part in item["content"])) for item in response["output"]]


# -- reasoning within the text -----------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("thinker", "<think>\nLet me see.\n</think>\n\nFour."),
        ("thinker-2", "<think>Let me see.\n</think>Four."),
        ("prompted", "Let me see.\n</think>\n\nFour."),
    ],
)
def test_reasoning_tags_in_the_text_become_an_item(
    client: openai.OpenAI, upstream: Upstream, model: str, output: str
) -> None:
    """Also when the tags are split into one delta per character."""
    upstream.script(model, reply(text(*output)))
    streamed = stream(client, model=f"local/{model}", input="2 + 2?")
    assert shown(streamed.response) == [("reasoning", "Let me see.\n"), ("message", "Four.")]
    assert "".join(streamed.texts("reasoning_text")) == "Let me see.\n"
    assert "".join(streamed.texts("output_text")) == "Four."
    assert stored(client, streamed.response["id"]) == streamed.response


def test_reasoning_tags_without_a_profile_stay_text(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("other", reply(text("<think>a</think>b")))
    assert shown(create(client, model="local/other", input="Hi")) == [("message", "<think>a</think>b")]


def test_unclosed_reasoning_tag_is_reasoning(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("thinker", reply(text("<think>", "Let me", " see </thi"), finish("length")))
    response = stream(client, model="local/thinker", input="Hi").response
    assert (response["status"], shown(response)) == ("incomplete", [("reasoning", "Let me see </thi")])


def test_reasoning_is_sent_back_in_tags_within_the_text(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("thinker", [reply(text("<think>a</think>one")), reply(text("<think>b</think>two"))])
    first = create(client, model="local/thinker", input="1")
    second = create(client, model="local/thinker", input="2", previous_response_id=first["id"])
    create(client, model="local/thinker", input="3", previous_response_id=second["id"])
    texts = [each["content"] for each in messages(upstream, "thinker") if each["role"] == "assistant"]
    assert texts == ["<think>\na\n</think>\n\none", "<think>\nb\n</think>\n\ntwo"]


@pytest.mark.parametrize(
    ("model", "field"), [("free", "reasoning"), ("other", "reasoning_content"), ("prompted", None)]
)
def test_reasoning_is_sent_back_in_the_field_of_the_profile(
    client: openai.OpenAI, upstream: Upstream, model: str, field: str | None
) -> None:
    thought = text("Hm.</think>") if model == "prompted" else reasoning("Hm.")
    upstream.script(model, [reply(thought, tool_call(0, "c1", "look", "{}")), reply(text("ok"))])
    first = create(client, model=f"local/{model}", input="Hi", tools=TOOLS)
    output = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    create(client, model=f"local/{model}", input=[output], tools=TOOLS, previous_response_id=first["id"])
    called = messages(upstream, model)[1]
    assert {name: called[name] for name in called if "reasoning" in name} == ({field: "Hm."} if field else {})
    assert not called["content"]


# -- chat templates ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("strict", [("system", "A\n\nB\n\nC"), ("user", "1"), ("user", "2")]),
        ("free", [("system", "A"), ("developer", "B"), ("user", "1"), ("system", "C"), ("user", "2")]),
        ("other", [("system", "A\n\nB"), ("user", "1"), ("system", "C"), ("user", "2")]),
    ],
)
def test_system_messages_follow_the_profile_of_the_template(
    client: openai.OpenAI, upstream: Upstream, model: str, expected: list[tuple[str, str]]
) -> None:
    upstream.script(model, reply(text("ok")))
    roles = [("developer", "B"), ("user", "1"), ("system", "C"), ("user", "2")]
    questions = [{"role": role, "content": content} for role, content in roles]
    create(client, model=f"local/{model}", instructions="A", input=questions)
    assert [(each["role"], each["content"]) for each in messages(upstream, model)] == expected


def test_media_stay_in_tool_output_if_the_template_supports_them(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("free", reply(text("ok")))
    parts = [{"type": "input_text", "text": "A cat:"}, IMAGE]
    output = {"type": "function_call_output", "call_id": "c1", "output": parts}
    create(client, model="local/free", input=[{"role": "user", "content": "Look!"}, CALL, output], tools=TOOLS)
    assert messages(upstream, "free")[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [
            {"type": "text", "text": "A cat:"},
            {"type": "image_url", "image_url": {"url": IMAGE["image_url"]}},
        ],
    }


@pytest.mark.parametrize(
    "part",
    [
        IMAGE,
        {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}},
    ],
    ids=["image", "audio"],
)
def test_media_for_a_model_without_media_are_400(wire: Wire, upstream: Upstream, part: Json) -> None:
    questions = [{"role": "user", "content": [part]}]
    error = error_of(wire.post({"model": "local/strict", "input": questions}), 400)
    assert (error["param"], error["code"]) == ("input[0].content[0]", "unsupported_value")
    assert upstream.requests() == []
    upstream.script("other", reply(text("ok")))
    wire.create(model="local/other", input=questions)


def test_max_output_tokens_has_the_name_of_the_profile(client: openai.OpenAI, upstream: Upstream) -> None:
    for model, name in (("strict", "max_tokens"), ("free", "max_completion_tokens")):
        upstream.script(model, reply(text("ok")))
        create(client, model=f"local/{model}", input="Hi", max_output_tokens=17)
        body = upstream.requests(model)[0].body
        assert {key: body[key] for key in body if key.startswith("max")} == {name: 17}


# -- passed-through fields, and limits -----------------------------------------------------


def test_only_configured_fields_are_passed_through(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("other", reply(text("ok")))
    extra: Any = {"top_k": 3, "house_style": {"a": [1]}, "seed": 4, "unknown": 5}
    create(client, model="local/other", input="Hi", extra_body=extra)
    body = upstream.requests("other")[0].body
    assert {name: body[name] for name in extra if name in body} == {"top_k": 3, "house_style": {"a": [1]}}


def test_unknown_fields_of_a_conversation_are_ignored_with_the_setting(client: openai.OpenAI) -> None:
    created = client.conversations.create(metadata={"a": "b"}, extra_body={"house_style": 1})
    assert created.metadata == {"a": "b"}


def test_endless_unknown_calls_end_as_incomplete(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("other", reply(tool_call(0, "c9", "teleport", "{}")))
    response = stream(client, model="local/other", input="Hi", tools=TOOLS).response
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_messages"})
    assert len(upstream.requests("other")) == 3


def test_input_over_the_item_limit_is_400(wire: Wire, upstream: Upstream) -> None:
    questions = [{"role": "user", "content": "x"}] * 5
    wire.create(model="local/echo", input=questions)
    error = error_of(wire.post({"model": "local/echo", "input": [*questions, *questions[:1]]}), 400)
    assert error["param"] == "input"
    assert len(upstream.requests("echo")) == 1


def test_body_over_the_configured_limit_is_413(wire: Wire, upstream: Upstream) -> None:
    wire.create(model="local/echo", input="x" * 19_000)
    error = error_of(wire.post({"model": "local/echo", "input": "x" * 20_000}), 413)
    assert error["code"] == "request_too_large"
    assert len(upstream.requests("echo")) == 1


# -- retention ---------------------------------------------------------------------------


def test_sweeper_deletes_responses_past_retention(configured: ConfiguredStack, wire: Wire) -> None:
    wire.create(model="local/echo", input="x")  # the sweeper starts with the first request
    wait_until(lambda: f"r/{configured.old['id']}" not in records(configured.database))
    error_of(wire.get(f"/{configured.old['id']}"), 404)
    assert wire.retrieve(configured.young["id"]) == configured.young


# -- a WebSocket --------------------------------------------------------------------------


def test_websocket_message_over_the_limit_closes_the_connection(
    configured: ConfiguredStack, upstream: Upstream
) -> None:
    with WebSocketClient(configured.stack) as websocket:
        websocket.ask(model="local/echo", input="x" * 10_000)
        assert websocket.closed() == (1009, "The message is too large.")


def test_websocket_requests_over_the_waiting_limit_are_429(configured: ConfiguredStack, upstream: Upstream) -> None:
    """One request runs and one waits, across all lanes. A third is refused until the first has ended.

    The unstored response that it continues is forgotten, as after every failed continuation.
    """
    with WebSocketClient(configured.stack) as websocket:
        websocket.ask("c", model="local/echo", input="x", store=False)
        parent = websocket.response("c")["id"]
        upstream.reset()
        upstream.script("held", reply(text("one ", "two"), hold=1))
        websocket.ask("a", model="local/held", input="x")
        websocket.until("response.output_text.delta", "a")
        websocket.ask("b", model="local/echo", input="x")
        websocket.ask("c", model="local/echo", input="x", previous_response_id=parent)
        refused = websocket.error("c")
        assert (refused["status"], refused["code"]) == (429, "rate_limit_exceeded")
        assert upstream.requests("echo") == []
        upstream.release("held")
        websocket.until("response.completed", "a")
        assert output_text(websocket.response("b"))
        websocket.ask("c", model="local/echo", input="x", previous_response_id=parent)
        assert websocket.error("c")["code"] == "previous_response_not_found"
        websocket.ask("c", model="local/echo", input="x")
        assert output_text(websocket.response("c"))


def test_websocket_memory_of_unstored_responses_is_bounded(configured: ConfiguredStack, upstream: Upstream) -> None:
    with WebSocketClient(configured.stack) as websocket:
        created = []
        for _ in range(2):
            websocket.ask(model="local/echo", input="x" * 3_000, store=False)
            created.append(websocket.response()["id"])
        websocket.ask(model="local/echo", input="go on", previous_response_id=created[0])
        assert websocket.error()["code"] == "previous_response_not_found"
        websocket.ask(model="local/echo", input="go on", previous_response_id=created[1])
        assert output_text(websocket.response())


@pytest.mark.extended
def test_websocket_client_that_does_not_read_is_disconnected(
    configured: ConfiguredStack, wire: Wire, upstream: Upstream
) -> None:
    """The generation ends, and its output is stored."""
    upstream.script("much", reply(text(*["x" * 500_000] * 32), end="hang"))
    with WebSocketClient(configured.stack) as websocket:
        websocket.ask(model="local/much", input="x")
        response = websocket.event()["response"]
        [record] = upstream.wait_for("much", ended=True)
        assert record.ended == "client_gone"
        wait_until(lambda: wire.retrieve(response["id"])["status"] != "in_progress")
        assert wire.retrieve(response["id"])["status"] == "cancelled"
