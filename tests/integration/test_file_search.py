"""File search in the host's vector stores, with an embedding model that counts words."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, create, stored, stream, tool_outputs
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.wire import Json, Wire, error_of, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

OTTERS = "Otters sleep hand in hand, so that nobody drifts apart. 【F9】"
FISH = "Fish swim in swarms, and otters eat them."


@pytest.fixture(scope="module")
def store(stack: LiveStack) -> Iterator[tuple[str, dict[str, str]]]:
    """A vector store with two files: its id, and the files' ids by name."""
    with stack.client() as client:
        # It takes the only embedding model whose length the stack knows.
        created = client.vector_stores.create(name="animals")
        files = {}
        for name, output, year in (("otters.txt", OTTERS, 2025), ("fish.txt", FISH, 2026)):
            files[name] = client.files.create(file=(name, output.encode()), purpose="assistants").id
            attached = client.vector_stores.files.create(
                vector_store_id=created.id, file_id=files[name], attributes={"year": year}
            )
            assert attached.status == "completed", attached.to_json()
        yield created.id, files


def asking(store_id: str, **options: Any) -> Any:
    """Return the tool with these options."""
    return {"type": "file_search", "vector_store_ids": [store_id], **options}


def searching(*queries: str) -> Any:
    """Return a reply that searches."""
    return reply(tool_call(0, "call_a", "file_search", json.dumps({"queries": queries})))


def searches(response: Json) -> list[Json]:
    """Return the file search calls of a response."""
    return [item for item in response["output"] if item["type"] == "file_search_call"]


def test_file_search_streams_its_events_and_cites_files(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, store: tuple[str, dict[str, str]]
) -> None:
    store_id, files = store
    upstream.script(
        NAME,
        [
            searching("otters sleep hand in hand", "nobody drifts apart"),
            reply(text("Hand in hand【", "F1】, they say.")),
        ],
    )
    include: Any = ["file_search_call.results"]
    streamed = stream(client, model=MODEL, input="How?", tools=[asking(store_id)], include=include)
    [item] = searches(streamed.response)
    assert (item["status"], item["queries"]) == ("completed", ["otters sleep hand in hand", "nobody drifts apart"])
    first, second = item["results"]
    assert (first["file_id"], first["filename"]) == (files["otters.txt"], "otters.txt")
    assert (first["text"], first["attributes"]) == (OTTERS, {"year": 2025.0})
    assert (second["filename"], first["score"] > second["score"]) == ("fish.txt", True)
    about_it = [event["type"] for event in streamed.events if event.get("output_index") == 0]
    assert about_it == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
    ]
    [part] = streamed.response["output"][-1]["content"]
    assert part["text"] == "Hand in hand, they say."
    assert part["annotations"] == [
        {"type": "file_citation", "file_id": files["otters.txt"], "filename": "otters.txt", "index": 12}
    ]
    assert f"【F1】 otters.txt\n{files['otters.txt']}\nOtters sleep hand in hand" in tool_outputs(upstream)[0]
    assert "【F9】" not in tool_outputs(upstream)[0]
    assert stored(client, streamed.response["id"]) == streamed.response
    assert wire.replay(streamed.response["id"]) == streamed.events


def test_invalid_file_search_arguments_make_a_failed_item(
    client: openai.OpenAI, upstream: Upstream, store: tuple[str, dict[str, str]]
) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "file_search", '{"queries": 5}')), reply(text("No."))])
    streamed = stream(client, model=MODEL, input="How?", tools=[asking(store[0])])
    [item] = searches(streamed.response)
    assert (item["status"], item["queries"]) == ("failed", [])


def test_file_search_results_are_absent_without_include(
    client: openai.OpenAI, upstream: Upstream, store: tuple[str, dict[str, str]]
) -> None:
    upstream.script(NAME, [searching("otters"), reply(text("Yes."))])
    [item] = searches(create(client, model=MODEL, input="How?", tools=[asking(store[0])]))
    assert item["results"] is None


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"max_num_results": 1}, ["otters.txt"]),
        ({"filters": {"type": "eq", "key": "year", "value": 2026}}, ["fish.txt"]),
        (
            {
                "filters": {
                    "type": "or",
                    "filters": [
                        {"type": "lt", "key": "year", "value": 2026},
                        {"type": "gt", "key": "year", "value": 2026},
                    ],
                }
            },
            ["otters.txt"],
        ),
        ({"ranking_options": {"ranker": "auto", "score_threshold": 0.0}}, ["otters.txt", "fish.txt"]),
    ],
)
def test_file_search_options_restrict_the_results(
    client: openai.OpenAI, upstream: Upstream, store: tuple[str, dict[str, str]], options: Json, found: list[str]
) -> None:
    upstream.script(NAME, [searching("otters sleep hand in hand"), reply(text("Yes."))])
    include: Any = ["file_search_call.results"]
    response = create(client, model=MODEL, input="How?", tools=[asking(store[0], **options)], include=include)
    assert [result["filename"] for result in searches(response)[0]["results"]] == found


def test_file_search_score_threshold_drops_lower_scores(
    client: openai.OpenAI, upstream: Upstream, store: tuple[str, dict[str, str]]
) -> None:
    upstream.script(NAME, [searching(OTTERS), reply(text("Yes."))])
    tool = asking(store[0], ranking_options={"score_threshold": 1.0})
    response = create(client, model=MODEL, input="How?", tools=[tool], include=["file_search_call.results"])
    assert [(each["filename"], each["score"]) for each in searches(response)[0]["results"]] == [("otters.txt", 1.0)]


def test_file_citations_work_in_the_next_response(
    client: openai.OpenAI, upstream: Upstream, store: tuple[str, dict[str, str]]
) -> None:
    store_id, files = store
    upstream.script(NAME, [searching("otters"), reply(text("Yes.")), reply(text("See【F1】."))])
    first = create(client, model=MODEL, input="How?", tools=[asking(store_id)])
    second = create(client, model=MODEL, input="More.", tools=[asking(store_id)], previous_response_id=first["id"])
    [annotation] = second["output"][0]["content"][0]["annotations"]
    assert annotation["file_id"] in files.values()
    assert output_text(second) == "See."


def test_missing_vector_store_is_404(wire: Wire, upstream: Upstream) -> None:
    answer = wire.post({"model": MODEL, "input": "Hi", "tools": [asking("vs_none")]})
    assert error_of(answer, 404)["message"] == "Vector store with id 'vs_none' not found."
    assert upstream.requests(NAME) == []
