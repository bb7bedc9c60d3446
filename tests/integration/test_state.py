"""Stored responses: retrieve, replay, list, delete, input items, cancel."""

from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItem

from tests.support.openai_client import function
from tests.support.seed import DAY, MODEL, seed
from tests.support.stack import LiveStack
from tests.support.strict import check_stream, problems, read_sse
from tests.support.upstream import Reply, Upstream, finish, logprobs, reasoning, refusal, reply, text, tool_call
from tests.support.wire import Json, Wire, error_of, final, output_text

pytestmark = pytest.mark.live

UNKNOWN = "resp_000000000000000000000000"
WEATHER = function("weather", "city")
RICH: Json = {
    "input": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Weather in Oslo?"}],
    "instructions": "Answer briefly. " * 30,
    "tools": [
        WEATHER,
        {"type": "function", "name": "time", "parameters": {"type": "object", "description": "x" * 300}},
    ],
    "tool_choice": {"type": "function", "name": "weather"},
    "parallel_tool_calls": False,
    "metadata": {"ticket": "17", "team": "søk"},
    "text": {"format": {"type": "json_schema", "name": "report", "schema": {"type": "object"}, "strict": True}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "temperature": 0.25,
    "max_output_tokens": 999,
    "user": "ada",
    "prompt_cache_key": "k",
}
ENDINGS: dict[str, Reply] = {
    "completed": reply(
        reasoning("Let me ", "see."),
        logprobs(("Look", -0.1), ("ing", -0.5), top=[("A", -1.0), ("B", -2.0)]),
        tool_call(0, "call_1", "weather", '{"city":', '"Oslo"}'),
        tool_call(1, "call_2", "weather", "{}"),
    ),
    "refused": reply(refusal("I will", " not.")),
    "silent": reply(),
    "incomplete": reply(reasoning("hm"), text("Half an "), text("answer"), finish("length")),
    "failed": reply(text("Half an "), text("answer"), end="drop"),
    "failed-call": reply(text("Now: "), tool_call(0, "call_1", "weather", '{"ci'), end="error_frame"),
    "failed-thought": reply(reasoning("Let me"), end="no_finish"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_streamed_response_is_stored_and_replayed_unchanged(wire: Wire, upstream: Upstream, name: str) -> None:
    upstream.script("ending", ENDINGS[name])
    events = wire.stream(model="local/ending", **RICH)
    streamed = final(events)
    assert wire.retrieve(streamed["id"]) == streamed
    assert wire.replay(streamed["id"]) == events
    assert wire.retrieve(streamed["id"]) == streamed


@pytest.mark.parametrize("name", ["completed", "refused", "silent", "incomplete"])
def test_created_response_is_stored_unchanged(wire: Wire, upstream: Upstream, name: str) -> None:
    upstream.script("ending", ENDINGS[name])
    created = wire.create(model="local/ending", **RICH)
    assert wire.retrieve(created["id"]) == created
    assert {key: created[key] for key in ("instructions", "metadata", "temperature", "user")} == {
        key: RICH[key] for key in ("instructions", "metadata", "temperature", "user")
    }


def test_replay_starts_after_the_given_sequence_number(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    upstream.script("ending", ENDINGS["completed"])
    response = wire.create(model="local/ending", **RICH)
    events = wire.replay(response["id"])
    last = events[-1]["sequence_number"]
    for after in (0, 1, 5, last - 1, last, last + 7):
        answer = wire.get(f"/{response['id']}", stream="true", starting_after=after)
        assert read_sse(answer.content).events == events[after + 1 :]
    with client.responses.retrieve(response["id"], stream=True, starting_after=3) as stream:
        assert [event.sequence_number for event in stream] == list(range(4, last + 1))
    for nonsense in ("-1", "x", "1.5", "9" * 5000):
        error = error_of(wire.get(f"/{response['id']}", stream="true", starting_after=nonsense), 400)
        assert error["param"] == "starting_after"
    for flag in ("stream", "include_obfuscation"):
        assert error_of(wire.get(f"/{response['id']}", **{flag: "maybe"}), 400)["param"] == flag


def test_response_list_is_paginated_in_both_orders(wire: Wire, upstream: Upstream) -> None:
    for name in ("list-a", "list-b"):
        upstream.script(name, reply(text("ok")))
    responses = [wire.create(model=f"local/list-{'b' if n == 3 else 'a'}", input=str(n))["id"] for n in range(6)]
    of_a = [responses[n] for n in (0, 1, 2, 4, 5)]

    pages = wire.pages(model="local/list-a")  # one, unless the time limit of a page cuts it
    whole = [each for page in pages for each in page["data"]]
    assert [each["id"] for each in whole] == of_a[::-1]
    assert {page["object"] for page in pages} == {"list"}
    filled = [page for page in pages if page["data"]]  # a page that the time limit cuts may be empty
    assert (filled[0]["first_id"], filled[-1]["data"][-1]["id"]) == (of_a[-1], of_a[0])
    [given] = whole[0].pop("input")
    assert given["content"] == [{"type": "input_text", "text": "5"}]
    assert whole[0] == wire.retrieve(of_a[-1])

    for order, expected in (("asc", of_a), ("desc", of_a[::-1])):
        pages = wire.pages(limit=2, order=order, model="local/list-a")
        assert [each["id"] for page in pages for each in page["data"]] == expected
        assert max(len(page["data"]) for page in pages) == 2
    # Without a model filter, the list has the newest of all. After the last response, it is empty.
    assert [each["id"] for each in wire.listed(limit=6)] == responses[::-1]
    *_, last = wire.pages(model="local/list-a", after=of_a[0])
    assert last == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize("response_id", ["resp_fake_nonexistent_id", "resp_4c1b9b4e-11aa-4b6c-9d2e-0b5b3d8f8a11"])
def test_response_id_in_the_format_of_the_host_is_404(wire: Wire, response_id: str) -> None:
    error = error_of(wire.get(f"/{response_id}"), 404)
    assert error["message"].startswith(f"Response with id '{response_id}' not found.")
    body = {"model": "local/echo", "input": "x", "previous_response_id": response_id}
    assert error_of(wire.post(body), 400)["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "0"), ("limit", "101"), ("limit", "x"), ("limit", "-1"), ("order", "up"), ("after", UNKNOWN)],
)
def test_invalid_list_query_is_400_with_its_parameter(wire: Wire, name: str, value: str) -> None:
    response = wire.create(model="local/echo", input="x")
    for path in ("", f"/{response['id']}/input_items"):
        error = error_of(wire.get(path, **{name: value}), 400)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", name, "invalid_value")


def test_deleted_response_is_404_and_not_listed(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    response = wire.create(model="local/echo", input="x")
    answer = wire.http.delete(f"/responses/{response['id']}")
    assert answer.json() == {"id": response["id"], "object": "response", "deleted": True}
    for gone in wire.send_each_request(response["id"]).values():
        assert error_of(gone, 404)["type"] == "invalid_request_error"
    assert response["id"] not in [each["id"] for each in wire.listed(limit=100)]
    assert error_of(wire.get("", after=response["id"]), 400)["param"] == "after"
    other = client.responses.create(model="local/echo", input="y")
    client.responses.delete(other.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(other.id)


def test_response_older_than_thirty_days_is_404(wire: Wire, stack: LiveStack) -> None:
    """Also if the sweeper has not deleted it yet."""
    database = stack.state_dir / "responses.db"
    [young] = seed(database, [("a", "b")], age=29.9 * DAY)
    [old] = seed(database, [("c", "d")], age=30.1 * DAY)
    assert wire.retrieve(young["id"]) == young
    assert final(wire.replay(young["id"])) == young
    assert wire.listed(model=MODEL, order="asc", limit=1) == [young]
    for gone in wire.send_each_request(old["id"]).values():
        error_of(gone, 404)
    body = {"model": "local/echo", "input": "and?"}
    error = error_of(wire.post(body | {"previous_response_id": old["id"]}), 400)
    assert error["code"] == "previous_response_not_found"
    assert output_text(wire.create(**body, previous_response_id=young["id"])) == "and?"


def test_input_items_are_paginated_in_both_orders(client: openai.OpenAI, wire: Wire) -> None:
    lines = [f"line {number}" for number in range(250)]
    items: Any = [{"role": "user" if n % 2 == 0 else "assistant", "content": line} for n, line in enumerate(lines)]
    items[7]["id"] = "msg_of_the_client"
    response = client.responses.create(model="local/echo", input=items)

    path = f"/{response.id}/input_items"
    for order, expected in (("asc", lines), ("desc", lines[::-1])):
        pages = wire.pages(path, limit=100, order=order)
        assert [len(page["data"]) for page in pages] == [100, 100, 50]
        listed = [item for page in pages for item in page["data"]]
        assert [item["content"][0]["text"] for item in listed] == expected
        for item in listed:
            assert problems(ResponseItem, item) == []
    ids = [item["id"] for item in listed]
    assert len(set(ids)) == 250
    assert ids[-8] == "msg_of_the_client"
    # The SDK requests all pages by itself, newest first.
    assert [item.id for item in client.responses.input_items.list(response.id)] == ids

    page = wire.get(path).json()
    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    assert (page["object"], len(page["data"]), page["has_more"]) == ("list", 20, True)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[19])
    page = wire.get(path, limit=50, after=ids[199]).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[200:], False)
    page = wire.get(path, limit=3, after=ids[245], order="asc").json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[244:241:-1], True)


def test_input_items_of_a_chain_include_its_history(wire: Wire, upstream: Upstream) -> None:
    """Each item appears once, with the id that it has in the output of the earlier response."""
    upstream.script("chain", [ENDINGS["completed"], reply(text("Cold."))])
    first = wire.create(model="local/chain", input="Weather?", tools=[WEATHER])
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)]
    second = wire.create(model="local/chain", input=outputs, tools=[WEATHER], previous_response_id=first["id"])
    listed = wire.get(f"/{second['id']}/input_items", order="asc").json()["data"]
    assert [item["type"] for item in listed] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert [item["id"] for item in listed[1:5]] == [item["id"] for item in first["output"]]
    assert len({item["id"] for item in listed}) == len(listed)
    for item in listed:
        assert problems(ResponseItem, item) == []
    assert output_text(second) == "Cold."
    assert wire.get(f"/{second['id']}/input_items", order="asc").json()["data"] == listed


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_of_foreground_response_is_400(wire: Wire, stream: bool) -> None:
    response = (
        final(wire.stream(model="local/echo", input="x")) if stream else wire.create(model="local/echo", input="x")
    )
    error = error_of(wire.http.post(f"/responses/{response['id']}/cancel"), 400)
    assert error["type"] == "invalid_request_error"
    assert wire.retrieve(response["id"])["status"] == "completed"


def test_sdk_replays_a_stored_response(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("ending", ENDINGS["incomplete"])
    response = client.responses.create(model="local/ending", input="x")
    with client.responses.retrieve(response.id, stream=True) as stream:
        events = [event.to_dict() for event in stream]
    assert check_stream(events)["status"] == "incomplete"
