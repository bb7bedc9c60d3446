"""The built-in page's routes, on a stack with users."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from socket import SHUT_RDWR
from threading import Thread
from typing import Any, Self

import httpx
import pytest

from tests.support.auth import auth_server
from tests.support.image_server import data_url, png
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, error_of, final

pytestmark = pytest.mark.live

USERS: dict[str, Json] = {
    f"token-of-{name}": {"principal": name, "attributes": {"teams": [name]}, "tenant": "north"}
    for name in ("ada", "bob")
}
HOSTILE = "<img src=x onerror=alert(1)> <script>alert(1)</script> [x](javascript:alert(1)) **bold**"
ROUTES = (
    "/responses/{id}",
    "/responses/{id}/events",
    "/responses/{id}/input",
    "/responses/{id}/requests",
    "/chain/{id}",
)


@pytest.fixture(scope="module")
def guarded(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack of the starter template with auth, which records chat requests, and whose page is a file of the test."""
    folder = tmp_path_factory.mktemp("ui")
    (folder / "page").mkdir()
    (folder / "page" / "index.html").write_text("<!doctype html>")
    (folder / "page" / "app.js").write_text("export {};")

    def guard(config: Json) -> None:
        provider: Json = {"type": "custom", "endpoint": url}
        if host == "ogx":
            provider["tenant_field"] = "tenant"
        responses_config(config)["ui"] = {"record_requests": True}
        config["server"]["auth"] = {"provider_config": provider}

    with auth_server(USERS) as url:
        env = {
            **stack_env,
            "INFERENCE_URL": upstream_process.client.base_url,
            "LLAMA_STACK_RESPONSES_UI_DIR": str(folder / "page"),
        }
        with LiveStack(variant(STARTER, folder / "config.yaml", guard), env, folder / "state", host=host) as live:
            yield live


@pytest.fixture
def ada(guarded: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    with Wire(guarded, token="token-of-ada") as wire:
        yield wire


@pytest.fixture
def bob(guarded: LiveStack) -> Iterator[Wire]:
    with Wire(guarded, token="token-of-bob") as wire:
        yield wire


def ui(wire: Wire, path: str, **query: Any) -> Json:
    answer = wire.http.get(f"/ui{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def outside(stack: LiveStack, path: str, **headers: str) -> httpx.Response:
    """Send a GET without a token."""
    return httpx.get(f"{stack.base_url}{path}", headers=headers, timeout=60, trust_env=False, verify=False)


def test_head_of_a_file_is_that_of_get_without_the_content(guarded: LiveStack) -> None:
    for path in ("/ui", "/ui/", "/ui/app.js", "/ui/responses/resp_1"):
        head = httpx.head(f"{guarded.base_url}{path}", timeout=60, trust_env=False, verify=False)
        got = outside(guarded, path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-length", "content-type", "etag", "content-security-policy"):
            assert head.headers[name] == got.headers[name]


def test_public_paths_answer_every_method_without_a_token(guarded: LiveStack) -> None:
    def status(method: str, path: str) -> int:
        return httpx.request(method, f"{guarded.base_url}{path}", timeout=60, trust_env=False, verify=False).status_code

    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert [status(method, path) for path in ("/", "/ui", "/ui/app.js", "/ui/live")] == [405] * 4
        assert status(method, "/v1/ui/session") == status(method, "/v1/responses/resp_1") == 401
    assert status("HEAD", "/v1/ui/session") == status("HEAD", "/v1/responses") == 401


def test_files_need_no_token_and_data_does(guarded: LiveStack) -> None:
    for path in ("/ui", "/ui/", "/ui/responses/resp_1"):
        page = outside(guarded, path)
        assert (page.status_code, page.text) == (200, "<!doctype html>")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
    script = outside(guarded, "/ui/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert outside(guarded, "/ui/app.js", **{"if-none-match": script.headers["etag"]}).status_code == 304
    assert outside(guarded, "/ui/none.js").status_code == 404
    for path in ("/ui/../../etc/passwd", "/ui/..%2f..%2fconfig.yaml", "/ui/%2e%2e/config.yaml"):
        assert "server" not in outside(guarded, path).text
    for path in (
        "session",
        "tools",
        "responses",
        "chain/resp_1",
        "conversations/conv_1",
        "live",
        "stats",
        "responses/stream",
    ):
        assert outside(guarded, f"/v1/ui/{path}").status_code == 401


def test_address_of_the_server_leads_to_the_page(guarded: LiveStack) -> None:
    answer = outside(guarded, "/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")


def test_session_route_returns_the_user(ada: Wire) -> None:
    session = ui(ada, "/session")
    assert session["owner"]["name"] == "ada"
    assert not session["owner"]["anonymous"]
    assert session["record_requests"]
    assert session["background"]


def test_own_input_of_a_response_has_no_history(ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", [reply(text("One.")), reply(text("Two."))])
    first = ada.create(model="local/m", input="First?")["id"]
    image = {"type": "input_image", "image_url": data_url(png(1)), "detail": "auto"}
    question = [{"role": "user", "content": [{"type": "input_text", "text": "Second?"}, image]}]
    second = ada.create(model="local/m", input=question, previous_response_id=first)["id"]
    [item] = ui(ada, f"/responses/{second}/input")["data"]
    assert item["content"][0]["text"] == "Second?"
    assert item["content"][1]["image_url"] == image["image_url"]


def test_markdown_is_rendered_within_bounds(ada: Wire, guarded: LiveStack) -> None:
    def rendered(texts: Any) -> httpx.Response:
        return ada.http.post("/ui/markdown", json={"texts": texts})

    answer = rendered(["**a**", HOSTILE])
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["html"]
    assert first == "<p><strong>a</strong></p>\n"
    assert "<img" not in second
    assert "<script" not in second
    assert rendered(["x" * 100_000]).json()["html"] == ["<p>" + "x" * 100_000 + "</p>\n"]
    for texts in (None, "a", [1], ["a"] * 101, ["x" * 60_000, "y" * 60_000]):
        assert error_of(rendered(texts), 400)["param"] == "texts"
    unsigned = httpx.post(
        f"{guarded.base_url}/v1/ui/markdown", json={"texts": []}, timeout=60, trust_env=False, verify=False
    )
    assert unsigned.status_code == 401


def test_users_do_not_see_responses_of_one_another(ada: Wire, bob: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hello.")))
    response = ada.create(model="local/m", input="ada's secret question")
    conversation = ada.http.post("/conversations", json={}).json()["id"]
    assert response["id"] in [row["id"] for row in ui(ada, "/responses")["data"]]
    assert ui(bob, "/responses", text="secret")["data"] == []
    for route in ROUTES:
        assert ada.http.get(f"/ui{route.format(id=response['id'])}").status_code == 200
        theirs = error_of(bob.http.get(f"/ui{route.format(id=response['id'])}"), 404)
        unknown = "resp_000000000000000000000000"
        none = error_of(bob.http.get(f"/ui{route.format(id=unknown)}"), 404)
        assert theirs["message"].replace(response["id"], unknown) == none["message"]
    assert ada.http.get(f"/ui/conversations/{conversation}").status_code == 200
    error_of(bob.http.get(f"/ui/conversations/{conversation}"), 404)


def test_list_shows_filters_and_pages(ada: Wire, upstream: Upstream) -> None:
    created = []
    for number in range(3):
        upstream.script("m", reply(text(f"Answer {number}")))
        created.append(ada.create(model="local/m", input=f"filtered {number}", metadata={"n": str(number)})["id"])
    page = ui(ada, "/responses", text="FILTERED", limit=2)
    assert [row["id"] for row in page["data"]] == [created[2], created[1]]
    rest = ui(ada, "/responses", text="filtered", limit=2, after=page["next"])
    assert [row["id"] for row in rest["data"]] == [created[0]]
    row = rest["data"][0]
    assert (row["words"], row["answer"], row["status"], row["model"]) == (
        "filtered 0",
        "Answer 0",
        "completed",
        "local/m",
    )
    assert [each["id"] for each in ui(ada, "/responses", metadata="n:1")["data"]] == [created[1]]
    assert ui(ada, "/responses", text="filtered", status="failed")["data"] == []
    assert ui(ada, "/responses", text="filtered", to=1)["data"] == []
    for query in ({"after": "x"}, {"status": "x"}, {"from": "x"}, {"limit": 101}):
        error_of(ada.http.get("/ui/responses", params=query), 400)


def test_view_shows_a_response_without_markup_that_runs(ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text(HOSTILE)))
    streamed = final(ada.stream(model="local/m", input=HOSTILE, instructions="Be brief."))
    view = ui(ada, f"/responses/{streamed['id']}")
    request, answer = view["items"]
    for item in (request, answer):
        html = item["blocks"][0]["html"]
        assert "<strong>bold</strong>" in html
        assert not re.search("<(img|script)|href", html)
    assert view["output_from"] == 1
    assert view["instructions"] == {"text": "Be brief.", "truncated": False}
    assert view["facts"]["usage"]["total_tokens"] == streamed["usage"]["total_tokens"]
    assert view["owner"]["name"] == "ada"
    assert view["replayable"]


def test_chain_shows_turns_and_branches(ada: Wire, upstream: Upstream) -> None:
    def turn(words: str, previous: str | None = None) -> str:
        upstream.script("m", reply(text(f"Re: {words}")))
        response_id: str = ada.create(model="local/m", input=words, previous_response_id=previous)["id"]
        return response_id

    first = turn("one")
    left, right = turn("left", first), turn("right", first)
    last = turn("leaf", right)
    chain = ui(ada, f"/chain/{last}", limit=2)
    assert [each["id"] for each in chain["data"]] == [last, right]
    assert [each["id"] for each in chain["data"][1]["branches"]] == [left, right]
    assert [item["blocks"][0]["text"] for item in chain["data"][0]["items"]] == ["leaf", "Re: leaf"]
    assert chain["children"] == []
    rest = ui(ada, f"/chain/{last}", after=chain["next"])
    assert [each["id"] for each in rest["data"]] == [first]
    assert (rest["has_more"], rest["gone"]) == (False, None)
    assert [each["id"] for each in ui(ada, f"/chain/{first}")["children"]] == [left, right]
    ada.http.delete(f"/responses/{first}")
    assert ui(ada, f"/chain/{last}")["gone"] == first


def test_conversation_shows_its_items(ada: Wire, upstream: Upstream) -> None:
    conversation = ada.http.post("/conversations", json={"metadata": {"topic": "sea"}}).json()["id"]
    upstream.script("m", reply(text("Salt.")))
    ada.create(model="local/m", input="The sea?", conversation=conversation)
    page = ui(ada, f"/conversations/{conversation}", limit=1)
    assert page["conversation"]["metadata"] == {"topic": "sea"}
    assert [item["blocks"][0]["text"] for item in page["data"]] == ["The sea?"]
    rest = ui(ada, f"/conversations/{conversation}", after=page["next"])
    assert [item["blocks"][0]["text"] for item in rest["data"]] == ["Salt."]


def test_tool_calls_show_arguments(ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(tool_call(0, "call_1", "weather", '{"place":"Rome"}')))
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    response = ada.create(model="local/m", input="Rome?", tools=[tool])
    item = ui(ada, f"/responses/{response['id']}")["items"][1]
    assert (item["kind"], item["name"], item["run_by"]) == ("tool", "weather", "client")
    assert item["arguments"]["text"] == '{\n  "place": "Rome"\n}'


def test_events_come_with_their_times(ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text(*[f"word{number} " for number in range(30)]), interval=0.02))
    events = ada.stream(model="local/m", input="Slowly.")
    path = f"/responses/{final(events)['id']}/events"
    first = ui(ada, path, limit=10)
    rest = ui(ada, path, after=first["next"])
    found = [*first["data"], *rest["data"]]
    assert [each["event"] for each in found] == events
    times = [each["at_ms"] for each in found]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 300
    assert (first["timed"], first["has_more"], rest["has_more"]) == (True, True, False)


def test_timing_shows_rounds(ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hello."), interval=0.05))
    response = ada.create(model="local/m", input="Hi")
    timing = ui(ada, f"/responses/{response['id']}")["timing"]
    [one] = timing["rounds"]
    assert one["kind"] == "answer"
    assert 0 <= one["start_ms"] <= one["first_token_ms"] <= one["end_ms"] <= timing["total_ms"]
    assert one["output_tokens"] == response["usage"]["output_tokens"]
    assert (timing["tries"], timing["queue_ms"], timing["tools"]) == (1, 0, [])


@pytest.mark.parametrize("background", [False, True])
def test_chat_requests_are_recorded_and_deleted(ada: Wire, upstream: Upstream, background: bool) -> None:
    upstream.script("m", reply(text("Hello.")))
    response = ada.create(model="local/m", input="Recorded?", background=background)
    wait_until(lambda: ada.retrieve(response["id"])["status"] == "completed")
    found = ui(ada, f"/responses/{response['id']}/requests")
    [record] = found["data"]
    sent = upstream.requests("m")[-1].body
    assert record["request"]["messages"] == sent["messages"]
    assert (record["round"], record["kind"], record["truncated"], found["has_more"]) == (0, "answer", False, False)
    ada.http.delete(f"/responses/{response['id']}")
    error_of(ada.http.get(f"/ui/responses/{response['id']}/requests"), 404)


def test_chat_requests_of_unstored_responses_are_not_recorded(
    guarded: LiveStack, ada: Wire, upstream: Upstream
) -> None:
    upstream.script("m", reply(text("Hello.")))
    ada.create(model="local/m", input="canary-of-unstored", store=False)
    assert traces(guarded.state_dir, "canary-of-unstored") == []


class EventStreamReader:
    """The events of a stream of the page, read in a thread."""

    def __init__(self, stack: LiveStack, user: str, path: str) -> None:
        self.events: list[tuple[str, Json]] = []
        self._wire = Wire(stack, token=f"token-of-{user}")
        self._path = path
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        http = self._opened.enter_context(self._wire).http
        answer = self._opened.enter_context(http.stream("GET", f"/ui{self._path}"))
        assert answer.headers["content-type"].startswith("text/event-stream")
        thread = Thread(target=self._read, args=[answer])
        thread.start()
        self._opened.callback(thread.join)
        self._opened.callback(answer.extensions["network_stream"].get_extra_info("socket").shutdown, SHUT_RDWR)
        return self

    def __exit__(self, *_: object) -> None:
        """End the stream, then the thread, and then close the client."""
        self._opened.close()

    def _read(self, answer: httpx.Response) -> None:
        name = ""
        with suppress(httpx.RemoteProtocolError):  # the stream ends where it is
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line[6:])))

    def wait_for(self, found: Callable[[str, Json], bool]) -> Json:
        """Wait for an event and return its data."""
        wait_until(lambda: any(found(*each) for each in list(self.events)))
        return next(data for name, data in self.events if found(name, data))


def test_list_stream_sends_new_changed_and_deleted_rows(
    guarded: LiveStack, ada: Wire, bob: Wire, upstream: Upstream
) -> None:
    upstream.script("m", reply(text("Hello."), withheld=True))
    with EventStreamReader(guarded, "ada", "/responses/stream") as seen:
        seen.wait_for(lambda name, _: name == "ready")
        response_id = ada.create(model="local/m", input="Watched", background=True)["id"]
        seen.wait_for(
            lambda name, data: name == "row" and data["id"] == response_id and data["status"] == "in_progress"
        )
        upstream.release("m")
        row = seen.wait_for(
            lambda name, data: name == "row" and data["id"] == response_id and data["status"] == "completed"
        )
        assert row["answer"] == "Hello."
        ada.http.delete(f"/responses/{response_id}")
        seen.wait_for(lambda name, data: name == "removed" and data["id"] == response_id)
    with EventStreamReader(guarded, "bob", "/responses/stream") as theirs:
        theirs.wait_for(lambda name, _: name == "ready")
        upstream.script("m", reply(text("Hello.")))
        ada.create(model="local/m", input="Not for bob")
        own_row = bob.create(model="local/m", input="For bob")["id"]
        theirs.wait_for(lambda name, data: name == "row" and data["id"] == own_row)
        assert [data["id"] for name, data in theirs.events if name == "row"] == [own_row]


def test_refused_requests_are_listed_for_their_user_only(guarded: LiveStack, ada: Wire, bob: Wire) -> None:
    def listed(wire: Wire, **query: Any) -> list[Json]:
        return [row for row in ui(wire, "/responses", status="refused", **query)["data"] if row["request_id"] in ids]

    ids = {"ada-1", "ada-2", "ada-3", "ada-4", "ada-5", "ada-6"}
    error_of(ada.http.post("/responses", content=b"{", headers={"x-request-id": "ada-1"}), 400)
    wrong = {"model": "local/m", "input": "Which sea?", "metadata": {"team": "sea"}, "temperature": 7}
    error_of(ada.http.post("/responses", json=wrong, headers={"x-request-id": "ada-2"}), 400)
    with WebSocketClient(guarded, "token-of-ada", {"x-request-id": "ada-3"}) as websocket:
        websocket.ask(model="local/m", input="Which lake?", background=True)
        websocket.until("error")
    broken = {"content-encoding": "gzip", "content-type": "application/json"}
    error_of(ada.http.post("/responses", content=b"{", headers=broken | {"x-request-id": "ada-4"}), 400)
    data = {"x-llamastack-provider-data": "[1]", "x-ogx-provider-data": "[1]", "x-request-id": "ada-5"}
    error_of(ada.http.post("/responses", json=wrong, headers=data), 400)
    private = {"model": "local/none", "input": "Which pond?"}
    error_of(ada.http.post("/responses/compact", json=private, headers={"x-request-id": "ada-6"}), 404)
    wait_until(lambda: len(listed(ada)) == 6)
    of_compaction, of_header, of_encoding, of_socket, of_field, of_body = listed(ada)
    assert [of_encoding["error"], of_header["error"]] == ["invalid_content_encoding", "invalid_provider_data"]
    assert (of_compaction["model"], of_compaction["words"], of_compaction["message"]) == ("local/none", "", "")
    assert (of_body["model"], of_body["words"], of_body["http_status"]) == ("", "", 400)
    assert (of_field["words"], of_field["param"], of_field["metadata"]) == (
        "Which sea?",
        "temperature",
        {"team": "sea"},
    )
    assert (of_socket["words"], of_socket["error"]) == ("Which lake?", "unsupported_parameter")
    assert listed(ada, metadata="team:sea", model="m") == [of_field]
    assert ui(ada, f"/refused/{of_field['id']}")["message"] == of_field["message"]
    assert listed(bob) == []
    assert bob.http.get(f"/ui/refused/{of_field['id']}").status_code == 404


def test_live_shows_running_responses_as_they_grow(guarded: LiveStack, ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("One ", "two "), hold=2))
    with (
        EventStreamReader(guarded, "ada", "/live") as seen,
        EventStreamReader(guarded, "bob", "/live") as theirs,
    ):
        response_id = ada.create(model="local/m", input="Grow", background=True)["id"]
        state = seen.wait_for(
            lambda _, data: any(one["id"] == response_id and one["tail"] == "One two " for one in data["responses"])
        )
        [one] = [one for one in state["responses"] if one["id"] == response_id]
        assert (one["status"], one["words"], one["doing"], one["attempt"]) == ("in_progress", "Grow", "message", 1)
        assert one["worker"] == one["server"]
        assert one["lease_seconds"] <= 10
        assert one["this_server"]
        theirs.wait_for(lambda _, data: data["responses"] == [])
        assert all(data["responses"] == [] for _, data in theirs.events)
        upstream.release("m")
        seen.wait_for(lambda _, __: seen.events[-1][1]["responses"] == [])


def test_stats_count_the_callers_responses(guarded: LiveStack, ada: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hello.")))
    with EventStreamReader(guarded, "ada", "/stats") as seen, EventStreamReader(guarded, "bob", "/stats") as theirs:
        before = seen.wait_for(lambda name, _: name == "stats")
        of_bob = theirs.wait_for(lambda name, _: name == "stats")
        response = ada.create(model="local/m", input="Counted")
        after = seen.wait_for(lambda _, data: data["completed"] > before["completed"])
        assert after["requests"] == before["requests"] + 1
        assert after["output_tokens"] == before["output_tokens"] + response["usage"]["output_tokens"]
        assert after["first_token_ms"]["count"] == before["first_token_ms"]["count"] + 1
        later = theirs.wait_for(lambda _, data: data["at"] > after["at"])
        assert (later["requests"], later["rounds"]) == (of_bob["requests"], of_bob["rounds"])
