"""Batches of a live stack, with the client of the `openai` package."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.types import Batch

from tests.support.clients import node_client
from tests.support.mcp_server import McpServers
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, reply, text, tool_call
from tests.support.user_stack import TOKENS, client_of, own_key, user_stack
from tests.support.variants import Json, responses_config, rows, traces
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

ECHO: Final = "local/echo"
ENDED: Final = ("failed", "completed", "expired", "cancelled")


@pytest.fixture(scope="module")
def served(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack with users and batches."""

    def change(config: Json) -> None:
        responses_config(config)["batches"] = {"retry_seconds": 0.01, "tries": 3, "line_bytes": 10_000}
        responses_config(config)["webhooks"] = {"allow_http": True}
        config["storage"]["stores"]["inference"]["enabled"] = True
        config["providers"]["inference"][0]["config"]["embedding_models"] = {"words-64": 64}

    with user_stack(host, stack_env, upstream_process, tmp_path_factory.mktemp("batches"), change) as live:
        yield live


@pytest.fixture
def ada(served: LiveStack) -> Iterator[openai.OpenAI]:
    with client_of(served, "ada") as client:
        yield client


def line(custom_id: str, body: Mapping[str, Any], **changes: Any) -> Json:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body, **changes}


def uploaded(client: openai.OpenAI, lines: Sequence[Any]) -> str:
    """Upload an input file, and return its id."""
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    return client.files.create(file=("lines.jsonl", io.BytesIO(text.encode())), purpose="batch").id


def created(client: openai.OpenAI, lines: Sequence[Any], **fields: Any) -> Batch:
    return client.batches.create(
        input_file_id=uploaded(client, lines), endpoint="/v1/responses", completion_window="24h", **fields
    )


def until_ended(client: openai.OpenAI, batch: Batch) -> Batch:
    found: list[Batch] = []

    def ended() -> bool:
        found.append(client.batches.retrieve(batch.id))
        return found[-1].status in ENDED

    wait_until(ended)
    return found[-1]


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[Json]:
    """Return the lines of a file of results."""
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()] if file_id else []


def test_each_line_is_in_the_output_file(ada: openai.OpenAI) -> None:
    lines = [line(f"line-{number}", {"model": ECHO, "input": f"number {number}"}) for number in range(20)]
    batch = created(ada, lines, metadata={"job": "nightly"})
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"job": "nightly"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    ended = until_ended(ada, batch)
    assert (ended.status, ended.error_file_id, ended.model) == ("completed", None, ECHO)
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
    output = lines_of(ada, ended.output_file_id)
    assert [each["custom_id"] for each in output] == [each["custom_id"] for each in lines]
    for number, each in enumerate(output):
        body = each["response"]["body"]
        assert (each["error"], each["response"]["status_code"], body["status"]) == (None, 200, "completed")
        assert body["output"][0]["content"][0]["text"] == f"number {number}"
        assert ada.responses.retrieve(body["id"]).output_text == f"number {number}"
    assert ended.usage is not None
    assert ended.usage.total_tokens == sum(each["response"]["body"]["usage"]["total_tokens"] for each in output)
    times = [ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at]
    assert all(times)
    assert times == sorted(times)  # type: ignore[type-var]


def test_webhook_says_that_a_batch_has_ended_and_not_its_responses(ada: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("waiting", reply(text("a", "b"), hold=1))
    with Web() as web:
        web.answer_all = lambda _: Answer(b"ok")
        types: Any = ada.webhooks.event_types.list().data
        endpoint = ada.webhooks.create(name="Jobs", url=web.url("/hook"), event_types=types)
        completed = created(ada, [line("a", {"model": ECHO, "input": "Hi"})])
        failed = created(ada, ["{"])
        cancelled = created(ada, [line("a", {"model": "local/waiting", "input": "Hi"})])
        upstream.wait_for("waiting")
        ada.batches.cancel(cancelled.id)
        wait_until(lambda: len(web.seen) == 3)
        until_ended(ada, completed)
        ada.webhooks.delete(endpoint.id)
        events: list[Any] = [
            ada.webhooks.unwrap(each.body, each.headers, secret=endpoint.signing_secret) for each in web.seen
        ]
    ends = {completed.id: "batch.completed", failed.id: "batch.failed", cancelled.id: "batch.cancelled"}
    assert {each.data.id: each.type for each in events} == ends


BODIES: Final[Mapping[str, tuple[Json, str]]] = {
    "/v1/chat/completions": (
        {"model": ECHO, "messages": [{"role": "user", "content": "Hello there"}]},
        "chat.completion",
    ),
    "/v1/completions": ({"model": ECHO, "prompt": "Hello there"}, "text_completion"),
    "/v1/embeddings": ({"model": "local/words-64", "input": ["otters", "sleep"]}, "list"),
}


def test_lines_continue_responses_and_conversations_and_use_tools(
    ada: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    before = ada.responses.create(model=ECHO, input="the first turn")
    conversation = ada.conversations.create(items=[{"type": "message", "role": "user", "content": "an earlier item"}])
    upstream.script("calling", reply(tool_call(0, "c1", "look_up", '{"word": "otter"}')))
    upstream.script("asking", [reply(tool_call(0, "c1", "mcp__echo", '{"text": "from afar"}')), reply(text("Done."))])
    for name in ("next", "talking"):
        upstream.script(name, reply(text("Done.")))
    function = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}
    remote = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url("mcp"), "require_approval": "never"}
    lines = [
        line("continued", {"model": "local/next", "input": "On", "previous_response_id": before.id}),
        line("talking", {"model": "local/talking", "input": "Hello", "conversation": conversation.id}),
        line("function", {"model": "local/calling", "input": "Look", "tools": [function]}),
        line("remote", {"model": "local/asking", "input": "Ask", "tools": [remote]}),
    ]
    ended = until_ended(ada, created(ada, lines))
    output = {each["custom_id"]: each["response"]["body"] for each in lines_of(ada, ended.output_file_id)}
    assert list(output) == ["continued", "talking", "function", "remote"], lines_of(ada, ended.error_file_id)
    assert output["continued"]["previous_response_id"] == before.id
    for name, said in (("next", "the first turn"), ("talking", "an earlier item")):
        [asked] = upstream.requests(name)
        assert said in json.dumps(asked.body["messages"])
    items = [item.to_dict() for item in ada.conversations.items.list(conversation.id, order="asc")]
    assert [item["type"] for item in items] == ["message"] * 3
    assert [item["name"] for item in output["function"]["output"]] == ["look_up"]
    assert [item["type"] for item in output["remote"]["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert output["remote"]["output"][1]["output"] == "from afar"


def test_lines_have_the_keys_and_the_owner_of_who_made_the_batch(
    ada: openai.OpenAI, served: LiveStack, host: Host, upstream: Upstream
) -> None:
    upstream.script("keyed", reply(text("Done.")))
    keyed = ada.with_options(default_headers=own_key(host, "key-of-ada"))
    lines = [line(f"line-{number}", {"model": "local/keyed", "input": "Hi"}) for number in range(2)]
    ended = until_ended(ada, created(keyed, lines))
    assert [each.headers["authorization"] for each in upstream.requests("keyed")] == ["Bearer key-of-ada"] * 2
    assert traces(served.state_dir, "key-of-ada") == []
    made = [each["response"]["body"]["id"] for each in lines_of(ada, ended.output_file_id)]
    with client_of(served, "bob") as bob:
        for response_id in made:
            assert ada.responses.retrieve(response_id).output_text == "Done."
            with pytest.raises(openai.NotFoundError):
                bob.responses.retrieve(response_id)


@pytest.mark.parametrize("endpoint", BODIES)
def test_lines_of_other_endpoints_have_the_answers_of_the_host(
    ada: openai.OpenAI, served: LiveStack, endpoint: Any
) -> None:
    body, kind = BODIES[endpoint]
    lines = [line(f"line-{number}", body, url=endpoint) for number in range(3)]
    lines.append(line("wrong", {"model": body["model"]}, url=endpoint))
    lines.append(line("unknown", body | {"model": "nobody"}, url=endpoint))
    file_id = uploaded(ada, lines)
    batch = ada.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h")
    ended = until_ended(ada, batch)
    assert counts(ada, batch) == {"total": 5, "completed": 3, "failed": 2}
    output = [each["response"] for each in lines_of(ada, ended.output_file_id)]
    assert [(each["status_code"], each["body"]["object"]) for each in output] == [(200, kind)] * 3
    errors = {each["custom_id"]: each["response"] for each in lines_of(ada, ended.error_file_id)}
    assert [errors[name]["status_code"] for name in ("wrong", "unknown")] == [400, 404]
    assert errors["wrong"]["body"]["error"]["code"] == "invalid_value"
    path = endpoint.removeprefix("/v1")
    # The model server gives all answers of a model one id, so the host would keep one row of all of them.
    if endpoint == "/v1/chat/completions":
        assert rows(served.state_dir / "host-sql.db", "chat_completions") == 0
    direct: Json = ada.post(path, body=body, cast_to=dict[str, Any])
    if endpoint == "/v1/chat/completions":
        wait_until(lambda: rows(served.state_dir / "host-sql.db", "chat_completions") == 1)
    same = ("choices", "data")
    assert {name: output[0]["body"].get(name) for name in same} == {
        name: without_nulls(direct.get(name)) for name in same
    }


def without_nulls(value: Any) -> Any:
    """Return a value without members that are null."""
    match value:
        case dict():
            return {name: without_nulls(each) for name, each in value.items() if each is not None}
        case list():
            return [without_nulls(each) for each in value]
    return value


def test_refused_and_failed_lines_are_in_the_error_file_as_answers_of_their_requests(
    ada: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script("failing", error(400, "No."))
    upstream.script("away", error(404, "No such model."))
    upstream.script("broken", error(502, "Bad gateway."))
    upstream.script("keyless", error(401, "Wrong key."))
    lines = [
        line("good", {"model": ECHO, "input": "Hi"}),
        line("unknown", {"model": "nobody/here", "input": "Hi"}),
        line("wrong", {"model": ECHO, "input": "Hi", "temperature": 9}),
        *(line(name, {"model": f"local/{name}", "input": "Hi"}) for name in ("failing", "away", "broken", "keyless")),
    ]
    ended = until_ended(ada, created(ada, lines))
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 7, "completed": 1, "failed": 6}
    assert [each["custom_id"] for each in lines_of(ada, ended.output_file_id)] == ["good"]
    errors = {each["custom_id"]: each["response"] for each in lines_of(ada, ended.error_file_id)}
    assert list(errors) == [each["custom_id"] for each in lines[1:]]
    for each in lines[1:]:
        with pytest.raises(openai.APIStatusError) as refused:
            ada.post("/responses", body=each["body"], cast_to=object)
        shown = errors[each["custom_id"]]
        assert (shown["status_code"], shown["body"]["error"]) == (refused.value.status_code, refused.value.body)
    assert ended.model is None


def test_line_is_tried_again_while_the_model_server_is_busy(ada: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("busy", [error(500, "Broken."), error(503, "Busy."), reply(text("Done"))])
    ended = until_ended(ada, created(ada, [line("a", {"model": "local/busy", "input": "Hi"})]))
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 1, "completed": 1, "failed": 0}
    [output] = lines_of(ada, ended.output_file_id)
    body = output["response"]["body"]
    assert body["output"][0]["content"][0]["text"] == "Done"
    assert body["id"][-2:] == "03"
    stored = ada.get("/responses", cast_to=object, options={"params": {"model": "local/busy"}})
    assert [each["id"] for each in stored["data"]] == [body["id"]]  # type: ignore[index]


def test_line_that_is_not_stored_is_in_the_output_file_only(ada: openai.OpenAI) -> None:
    ended = until_ended(ada, created(ada, [line("a", {"model": ECHO, "input": "secret", "store": False})]))
    [output] = lines_of(ada, ended.output_file_id)
    body = output["response"]["body"]
    assert (body["store"], body["output"][0]["content"][0]["text"]) == (False, "secret")

    def gone() -> bool:
        try:
            ada.responses.retrieve(body["id"])
        except openai.NotFoundError:
            return True
        return False

    wait_until(gone)


BROKEN: Final[Mapping[str, tuple[Sequence[Any], Sequence[tuple[str, int | None]]]]] = {
    "empty": (["", "  "], [("empty_file", None)]),
    "no JSON": (
        [line("a", {"model": ECHO}), "{", "[1]", '{"a": ' + "[" * 1000 + "]" * 1000 + "}"],
        [("invalid_json_line", 2), ("invalid_json_line", 3), ("invalid_json_line", 4)],
    ),
    "twice": ([line("a", {"model": ECHO}), "", line("a", {"model": ECHO})], [("duplicate_custom_id", 3)]),
    "members": (
        [
            {"custom_id": 7, "method": "GET", "url": "/v1/embeddings"},
            line("b", {"model": ECHO, "stream": True}),
            line("c", {}),
        ],
        [
            ("invalid_type", 1),
            ("invalid_value", 1),
            ("url_mismatch", 1),
            ("missing_required_parameter", 1),
            ("unsupported_value", 2),
            ("missing_required_parameter", 3),
        ],
    ),
    "long": ([line("a", {"model": ECHO, "input": "x" * 10_000})], [("line_too_long", 1)]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_file_that_cannot_be_used_fails_the_batch_with_lines_and_codes(ada: openai.OpenAI, name: str) -> None:
    lines, problems = BROKEN[name]
    ended = until_ended(ada, created(ada, lines))
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("failed", None, None)
    assert ended.errors is not None
    assert [(each.code, each.line) for each in ended.errors.data or ()] == problems
    assert ended.failed_at


def test_file_of_another_user_fails_the_batch(ada: openai.OpenAI, served: LiveStack) -> None:
    with client_of(served, "bob") as bob:
        file_id = uploaded(bob, [line("a", {"model": ECHO, "input": "Hi"})])
    batch = ada.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h")
    ended = until_ended(ada, batch)
    assert ended.errors is not None
    assert [(each.code, each.param) for each in ended.errors.data or ()] == [("file_not_found", "input_file_id")]


def test_batch_of_another_user_is_not_found(ada: openai.OpenAI, served: LiveStack) -> None:
    batch = until_ended(ada, created(ada, [line("a", {"model": ECHO, "input": "Hi"})]))
    with client_of(served, "bob") as bob:
        assert bob.batches.list().data == []
        for call in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        with pytest.raises(openai.NotFoundError):
            bob.files.content(batch.output_file_id or "")


def test_cancelled_batch_has_the_results_so_far(ada: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("held", reply(text("a", "b"), hold=1))
    lines = [line(f"good-{number}", {"model": ECHO, "input": "Hi"}) for number in range(3)]
    lines += [line(f"held-{number}", {"model": "local/held", "input": "Hi"}) for number in range(80)]
    batch = created(ada, lines)
    wait_until(lambda: counts(ada, batch)["completed"] == 3 and bool(upstream.requests("held")))
    cancelled = ada.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    ended = until_ended(ada, batch)
    assert (ended.status, bool(ended.cancelling_at), bool(ended.cancelled_at)) == ("cancelled", True, True)
    assert counts(ada, batch) == {"total": 83, "completed": 3, "failed": 80}
    assert [each["custom_id"] for each in lines_of(ada, ended.output_file_id)] == [f"good-{n}" for n in range(3)]
    errors = lines_of(ada, ended.error_file_id)
    assert [each["custom_id"] for each in errors] == [f"held-{number}" for number in range(80)]
    assert {(each["error"]["code"], each["response"]) for each in errors} == {("batch_cancelled", None)}
    assert ada.batches.cancel(batch.id).status == "cancelled"


def counts(client: openai.OpenAI, batch: Batch) -> Json:
    found = client.batches.retrieve(batch.id).request_counts
    return found.to_dict() if found else {}


def test_batches_are_listed_newest_first(ada: openai.OpenAI) -> None:
    first, second = (created(ada, [line("a", {"model": ECHO, "input": "Hi"})]) for _ in range(2))
    page = ada.batches.list(limit=1)
    assert ([each.id for each in page.data], page.has_more) == ([second.id], True)
    assert ada.batches.list(limit=1, after=second.id).data[0].id == first.id
    with pytest.raises(openai.BadRequestError, match="is in this list"):
        ada.batches.list(after=f"batch_{'0' * 24}")
    ended = until_ended(ada, first)
    with pytest.raises(openai.ConflictError):
        ada.batches.cancel(ended.id)


def test_request_with_the_key_of_another_one_gets_its_batch(ada: openai.OpenAI) -> None:
    file_id = uploaded(ada, [line("a", {"model": ECHO, "input": "Hi"})])

    def create(**fields: Any) -> Batch:
        endpoint: Any = fields.pop("endpoint", "/v1/responses")
        headers = {"Idempotency-Key": "nightly"}
        return ada.batches.create(
            input_file_id=file_id, endpoint=endpoint, completion_window="24h", extra_headers=headers, **fields
        )

    first = create()
    assert create().id == first.id
    with pytest.raises(openai.ConflictError) as refused:
        create(endpoint="/v1/embeddings")
    assert refused.value.code == "idempotency_key_reused"
    until_ended(ada, first)


def test_node_client_runs_lists_and_cancels_batches(served: LiveStack, upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("held-for-node", reply(text("a", "b"), hold=1))

    def node(scenario: str, model: str) -> Any:
        folder = tmp_path / scenario
        folder.mkdir()
        env = {"OPENAI_API_KEY": TOKENS["ada"]}
        return node_client("openai-node", "with_openai_node_work.mjs", served, folder, scenario, model, env=env).result

    counts = {"total": 3, "completed": 3, "failed": 0}
    output = [[f"line-{number}", f"number {number}"] for number in range(3)]
    assert node("batch", ECHO) == ["validating", "completed", counts, output, True]
    assert node("cancelled", "local/held-for-node")[:2] == [True, "cancelled"]


def test_files_of_results_expire(ada: openai.OpenAI) -> None:
    expiring: Any = {"anchor": "created_at", "seconds": 3600}
    ended = until_ended(ada, created(ada, [line("a", {"model": ECHO, "input": "Hi"})], output_expires_after=expiring))
    assert len(lines_of(ada, ended.output_file_id)) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/videos"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"extra_body": {"what": 1}}, "what"),
    ],
)
def test_wrong_request_is_refused(ada: openai.OpenAI, fields: Json, param: str) -> None:
    create: Callable[..., Any] = ada.batches.create
    good = {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as refused:
        create(**good | fields)
    assert refused.value.param == param
