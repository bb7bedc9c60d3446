"""The JSON that the documentation of the page's routes shows has the fields and types of the answers."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.support.mcp_server import McpServers
from tests.support.shapes import differences
from tests.support.snippet_programs import SCORE, UI_ANSWERS
from tests.support.snippets import blocks
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import add_containers, open_this_machine, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

BLOCKS: Final = blocks()
PAGE: Final = "docs/reference/ui.md"
MODEL: Final = "local/qwen3"
TEAM: Final = {"team": "search"}


@pytest.fixture(scope="module")
def recording(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """The starter template, which records chat requests and counts usage."""

    def change(config: Json) -> None:
        responses_config(config)["ui"] = {"record_requests": True}
        responses_config(config)["doctor"] = {"at_start": True, "models": ["local/echo"]}
        responses_config(config)["usage"] = {"metadata_key": "project"}
        open_this_machine(config)
        add_containers(config)

    folder = tmp_path_factory.mktemp("recording")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def wire(recording: LiveStack) -> Iterator[Wire]:
    with Wire(recording) as wire:
        yield wire


def first_event(wire: Wire, path: str, fits: Callable[[Json], bool]) -> Json:
    """Return the data of the first event of a stream of the page that fits."""
    with wire.http.stream("GET", f"/ui{path}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and fits(found := json.loads(line[6:])):
                event: Json = found
                return event
    raise AssertionError(f"the stream {path} ended")


def make_responses(wire: Wire, upstream: Upstream, mcp: McpServers) -> tuple[list[str], str]:
    """Make a chain whose first turn calls a tool and has two branches; return its ids and a conversation's id."""
    call = reply(tool_call(0, "c1", "mcp__echo", '{"text": "x"}'))
    upstream.script("qwen3", [call, *[reply(text("Salt wind ", "on grey stone"))] * 9])
    tool = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url(), "require_approval": "never"}
    ids: list[str] = []
    questions: list[Json] = [
        {"tools": [tool], "instructions": "Be brief."},
        {"previous": 0, "instructions": "Be brief."},
        {"previous": 0},
        {"previous": 1},
    ]
    for more in questions:
        previous = {"previous_response_id": ids[more.pop("previous")]} if "previous" in more else {}
        ids.append(
            wire.create(model=MODEL, input="Write a haiku about the sea.", metadata=TEAM, **more, **previous)["id"]
        )
    conversation = wire.http.post("/conversations", json={"metadata": {"topic": "sea"}}).json()["id"]
    last = wire.create(model=MODEL, input="Again.", conversation=conversation, metadata=TEAM)["id"]
    for response_id in (*ids, last):
        scored = {"score": 1, "note": "Short, as asked."}
        assert wire.http.post(f"/responses/{response_id}/score", json=scored).status_code == 200
    return ids, conversation


def examined(ui: Callable[[str], Any]) -> Any:
    """Return the cards of the page when a model was examined, with the lines that the documentation has."""

    def examined() -> list[Any]:
        [card] = [each for each in ui("cards")["data"] if each["title"] == "Model servers"]
        return [each for each in card["sections"] if each["title"] == "local/echo"]

    wait_until(lambda: bool(examined()))
    [section] = examined()
    section["entry"] = {"match": "local/echo", "dialect": []}
    cards = ui("cards")
    return cards | {"data": [{**cards["data"][0], "sections": [section]}]}


def refused(wire: Wire, ui: Callable[[str], Any]) -> Any:
    """Return what is kept of a request that was refused."""
    wrong = [{"role": "systm", "content": "Write a haiku about the sea."}]
    assert wire.post({"model": MODEL, "input": wrong, "metadata": TEAM}).status_code == 400
    wait_until(lambda: ui("responses?status=refused")["data"])
    return ui(f"refused/{ui('responses?status=refused')['data'][0]['id']}")


def searched(ui: Callable[[str], Any]) -> Any:
    """Return the list of responses that a search finds, once the first ones are indexed."""
    path = "responses?limit=2&text=haiku"
    wait_until(lambda: all(row["snippet"] for row in ui(path)["data"]))
    return ui(path)


def running(wire: Wire, upstream: Upstream) -> Json:
    """Return the live state of a background response that has begun to write."""
    upstream.script("slow", reply(text("One ", "two "), hold=2))
    response_id = wire.create(model="local/slow", input="Write a haiku", background=True)["id"]
    state = first_event(wire, "/live", lambda data: any(each["tail"] == "One two " for each in data["responses"]))
    [one] = state["responses"]
    upstream.release("slow")
    wait_until(lambda: wire.retrieve(response_id)["status"] == "completed")
    found: Json = one
    return found


def test_documented_answers_have_the_fields_and_types_of_the_answers(
    wire: Wire, upstream: Upstream, mcp: McpServers
) -> None:
    ids, conversation = make_responses(wire, upstream, mcp)

    def ui(path: str) -> Any:
        answer = wire.http.get(f"/ui/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    view = ui(f"responses/{ids[0]}")
    answers = {
        "`GET /v1/ui/session`": ui("session"),
        "`GET /v1/ui/tools`": ui("tools"),
        "`GET /v1/ui/cards`": examined(ui),
        "`GET /v1/ui/responses`": searched(ui),
        "`GET /v1/ui/export`": ui("export?limit=1"),
        "`GET /v1/ui/sessions`": ui("sessions"),
        "`GET /v1/ui/refused/{id}`": refused(wire, ui),
        "`GET /v1/ui/responses/{id}`": view,
        "Timing": view["timing"],
        "`GET /v1/ui/responses/{id}/events`": ui(f"responses/{ids[0]}/events?limit=1"),
        "`GET /v1/ui/responses/{id}/requests`": ui(f"responses/{ids[0]}/requests?limit=1"),
        "`GET /v1/ui/chain/{id}`": ui(f"chain/{ids[1]}?limit=1"),
        "`GET /v1/ui/conversations/{id}`": ui(f"conversations/{conversation}"),
        "`GET /v1/ui/live`": running(wire, upstream),
        "`GET /v1/ui/stats`": first_event(wire, "/stats", lambda data: "at" in data),
        "`GET /v1/ui/history`": ui("history"),
    }
    assert {f"{PAGE}, {section}, json" for section in answers} == set(UI_ANSWERS)
    shown = {section: json.loads(BLOCKS[f"{PAGE}, {section}, json"].text) for section in answers}
    score = wire.http.get(f"/responses/{ids[0]}/score").json()
    assert differences(json.loads(BLOCKS[SCORE].text), score) == []
    found = {section: differences(shown[section], answer) for section, answer in answers.items()}
    assert {section: each for section, each in found.items() if each} == {}
    assert answers["Timing"]["tools"]
    assert answers["`GET /v1/ui/chain/{id}`"]["data"][0]["branches"]
    assert answers["`GET /v1/ui/chain/{id}`"]["children"]
