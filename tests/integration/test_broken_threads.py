"""Threads of which a part is lost go on: foreign reasoning, interrupted calls, outputs that do not name their call."""

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of, final

pytestmark = pytest.mark.live

NAME: Final = "m"
MODEL: Final = f"local/{NAME}"
TOOLS: Final = [{"type": "function", "name": "f"}]
CALLS: Final = reply(tool_call(0, "c1", "f", '{"n":1}'), tool_call(1, "c2", "f", '{"n":2}'))
SEAL: Final = "gAAAAABsealed-elsewhere"
ANSWER: Final = {"type": "message", "role": "assistant", "content": "Four."}


@pytest.fixture(scope="module")
def lenient(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """The starter template, which matches outputs in order."""

    def change(config: Json) -> None:
        responses_config(config)["missing_call_ids"] = "match"

    folder = tmp_path_factory.mktemp("lenient")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as running:
        yield running


@pytest.fixture
def own(lenient: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """A client of that stack."""
    with Wire(lenient) as wire:
        yield wire


class Thread:
    """A thread that is continued in one of the ways of the API."""

    def __init__(self, wire: Wire, way: str) -> None:
        self._wire = wire
        self._way = way
        self._kept: list[Json] = []
        self._more: Json = {}
        if way == "conversation":
            created = wire.http.post("/conversations", json={})
            self._more = {"conversation": created.json()["id"]}

    def send(self, *items: Json, stream: bool = False) -> Json:
        """Send items, and return the response."""
        sent = [*self._kept, *items] if self._way == "resent" else list(items)
        request: dict[str, Any] = {"model": MODEL, "input": sent, "tools": TOOLS, "store": self._way != "resent"}
        if stream:
            events = self._wire.stream(**request, **self._more)
            response = check_stream(events)
            assert response == final(events)
        else:
            response = self._wire.create(**request, **self._more)
        self._kept = [*sent, *response["output"]]
        if self._way == "previous":
            self._more = {"previous_response_id": response["id"]}
        return response


WAYS: Final = ("previous", "conversation", "resent")


def user(words: str) -> Json:
    return {"type": "message", "role": "user", "content": words}


def foreign() -> Json:
    """Return reasoning that another server sealed, with an id that is not stored here."""
    summary = [{"type": "summary_text", "text": "They think."}]
    return {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": summary, "encrypted_content": SEAL}


def output(words: str, **named: str) -> Json:
    return {"type": "function_call_output", "output": words, **named}


def sent(upstream: Upstream) -> list[Json]:
    """Return the messages that the model got last."""
    messages: list[Json] = upstream.requests(NAME)[-1].body["messages"]
    return messages


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", WAYS)
def test_thread_with_reasoning_of_another_server_goes_on(
    own: Wire, lenient: LiveStack, upstream: Upstream, way: str, stream: bool
) -> None:
    upstream.script(NAME, [reply(reasoning("Hm."), text("Nine.")), reply(text("Sixteen."))])
    thread = Thread(own, way)
    thought = foreign()
    thread.send(user("2 + 2?"), thought, ANSWER, user("3 * 3?"), stream=stream)
    thread.send(user("4 * 4?"), stream=stream)
    assert [each["role"] for each in sent(upstream)] == ["user", "assistant", "user", "assistant", "user"]
    assert SEAL not in str(sent(upstream))
    warning = f"dropped reasoning of a request that cannot be unsealed: 1 ({thought['id']})"
    assert lenient.log.read_text(errors="replace").count(warning) == (2 if way == "resent" else 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["compaction", "context_compaction"])
@pytest.mark.parametrize("way", WAYS)
def test_thread_that_another_server_compacted_goes_on(
    own: Wire, lenient: LiveStack, upstream: Upstream, way: str, kind: str, stream: bool
) -> None:
    upstream.script(NAME, reply(text("Nine.")))
    thread = Thread(own, way)
    summary = {"type": kind, "id": f"cmp_{uuid4().hex}", "encrypted_content": SEAL}
    thread.send(summary, user("3 * 3?"), stream=stream)
    thread.send(user("4 * 4?"), stream=stream)
    said = str(sent(upstream))
    assert said.count("cannot be read here") == 1
    assert SEAL not in said
    warning = f"dropped summaries of a request that cannot be unsealed: 1 ({summary['id']})"
    assert lenient.log.read_text(errors="replace").count(warning) == (2 if way == "resent" else 1)


def test_thread_that_another_server_compacted_is_compacted_here(own: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("They count.")))
    body = {"model": MODEL, "input": [{"type": "compaction", "encrypted_content": SEAL}, user("3 * 3?")]}
    answer = own.http.post("/responses/compact", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][-1]["type"] == "compaction"


LOCAL_SHELL: Final = {"type": "local_shell_call", "status": "completed", "action": {"type": "exec", "command": ["ls"]}}


@pytest.mark.parametrize(
    ("named", "result"),
    [
        ({"id": "lsh_7"}, {"type": "local_shell_call_output", "id": "lsh_7"}),
        ({"id": "lsh_7", "call_id": None}, {"type": "function_call_output", "call_id": "lsh_7"}),
        ({"call_id": "c7"}, {"type": "function_call_output", "call_id": "c7"}),
        ({}, None),
    ],
    ids=["by-id", "function-by-id", "function", "without-output"],
)
def test_thread_with_a_local_shell_call_of_codex_goes_on(
    own: Wire, upstream: Upstream, named: Json, result: Json | None
) -> None:
    upstream.script(NAME, reply(text("Two files.")))
    results = [{**result, "output": "a b"}] if result else []
    answer = Thread(own, "previous").send(user("List."), {**LOCAL_SHELL, **named}, *results, user("And?"))
    assert answer["status"] == "completed"
    roles = [each["role"] for each in sent(upstream)]
    assert roles == ["user", "assistant", "tool", "user"]


def test_warning_about_dropped_reasoning_names_the_request(own: Wire, lenient: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Yes.")))
    body = {"model": MODEL, "input": [user("x"), foreign(), user("y")]}
    answer = own.http.post("/responses", json=body, headers={"x-request-id": "req-of-the-test-4711"})
    assert answer.status_code == 200, answer.text
    lines = [line for line in lenient.log.read_text(errors="replace").splitlines() if "dropped reasoning" in line]
    assert answer.headers["x-request-id"] in lines[-1]


def test_conversation_takes_reasoning_of_another_server(own: Wire) -> None:
    thought = foreign()
    created = own.http.post("/conversations", json={"items": [user("x"), thought]})
    assert created.status_code == 200, created.text
    listed: list[Json] = own.http.get(f"/conversations/{created.json()['id']}/items", params={"order": "asc"}).json()[
        "data"
    ]
    assert listed[1]["summary"] == thought["summary"]
    assert not listed[1].get("encrypted_content")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", WAYS)
def test_thread_goes_on_after_interrupted_calls(own: Wire, upstream: Upstream, way: str, stream: bool) -> None:
    upstream.script(NAME, [CALLS, reply(text("Stopped.")), reply(text("Still here."))])
    thread = Thread(own, way)
    thread.send(user("Work."), stream=stream)
    thread.send(output("one", call_id="c1"), user("Stop!"), stream=stream)
    thread.send(user("And?"), stream=stream)
    roles = ["user", "assistant", "tool", "tool", "user", "assistant", "user"]
    assert [each["role"] for each in sent(upstream)] == roles
    assert [each["tool_call_id"] for each in sent(upstream)[2:4]] == ["c1", "c2"]
    assert sent(upstream)[2]["content"] == "one"
    assert "interrupted" in sent(upstream)[3]["content"]


def test_background_response_goes_on_after_an_interrupted_call(own: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, [CALLS, reply(text("Stopped."))])
    first = own.create(model=MODEL, input="Work.", tools=TOOLS)
    body = {"model": MODEL, "input": "Stop!", "previous_response_id": first["id"], "background": True}
    queued = own.post(body).json()
    wait_until(lambda: own.retrieve(queued["id"])["status"] == "completed")
    assert [each["role"] for each in sent(upstream)] == ["user", "assistant", "tool", "tool", "user"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", WAYS)
def test_outputs_without_call_ids_are_matched_in_order(own: Wire, upstream: Upstream, way: str, stream: bool) -> None:
    upstream.script(NAME, [CALLS, reply(text("Done.")), reply(text("Bye."))])
    thread = Thread(own, way)
    thread.send(user("Work."), stream=stream)
    thread.send(output("one"), output("two", call_id=""), stream=stream)
    thread.send(user("Thanks."), stream=stream)
    results = [(each["tool_call_id"], each["content"]) for each in sent(upstream) if each["role"] == "tool"]
    assert results == [("c1", "one"), ("c2", "two")]


def test_matched_output_is_stored_with_its_call_id(own: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, [CALLS, reply(text("Done."))])
    first = own.create(model=MODEL, input="Work.", tools=TOOLS)
    second = own.create(
        model=MODEL, input=[output("one"), output("two")], tools=TOOLS, previous_response_id=first["id"]
    )
    [page] = own.pages(f"/{second['id']}/input_items", order="asc")
    assert [each["call_id"] for each in page["data"] if each["type"] == "function_call_output"] == ["c1", "c2"]
    refused = error_of(own.post({"model": MODEL, "input": [user("x"), output("one")]}), 400)
    assert (refused["param"], refused["code"]) == ("input[1].call_id", "missing_required_parameter")


def test_output_without_call_id_is_refused_by_default(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, CALLS)
    first = wire.create(model=MODEL, input="Work.", tools=TOOLS)
    refused = error_of(wire.post({"model": MODEL, "input": [output("x")], "previous_response_id": first["id"]}), 400)
    assert refused["message"] == "Missing required parameter: 'input[0].call_id'."
    assert (refused["param"], refused["code"]) == ("input[0].call_id", "missing_required_parameter")
