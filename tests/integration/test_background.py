"""Background responses: queue, event streams, cancellation, deletion, and recovery after a kill or a shutdown."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, function, judged, stored, stream
from tests.support.reader import Reader
from tests.support.socket_client import SocketClient
from tests.support.sse import read_sse
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import CHANGING, check_stream
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Reply, Upstream, UpstreamProcess, error, finish, reasoning, reply, text, tool_call
from tests.support.variants import records, responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text, roles_and_texts

pytestmark = pytest.mark.live

COUNT = [*reasoning("Hm."), *text("one ", "two ", "three")]
HELD = reply(COUNT, hold=3)
WHOLE = reply(COUNT)
WEATHER = function("weather", "city")
CALLING = reply(COUNT[:3], tool_call(0, "call_1", "weather", '{"city":', '"Oslo"}'), hold=5)
OPENING = ["response.created", "response.queued", "response.in_progress"]


@pytest.fixture(scope="module")
def small(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack that runs two background responses at a time, queues two more, and may be killed."""

    def shrink(config: Json) -> None:
        responses_config(config).update(background={"concurrency": 2, "waiting": 2}, flush_seconds=1)

    folder = tmp_path_factory.mktemp("small")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "UNAVAILABLE_TOOLS": "refuse"}
    with LiveStack(variant(STARTER, folder / "config.yaml", shrink), env, folder / "state", host=host) as live:
        yield live


def queue(wire: Wire, **body: Any) -> Json:
    """Request a background response and return the answer."""
    answer = wire.post({"model": MODEL, "input": "Count.", "background": True, **body})
    assert answer.status_code == 200, answer.text
    response = checked(answer)
    assert (response["status"], response["output"], response["background"]) == ("queued", [], True)
    return response


def running(wire: Wire, upstream: Upstream, **body: Any) -> Json:
    """Return a background response that is held after the output "one two "."""
    before = len(upstream.requests(NAME))
    response = queue(wire, **body)
    assert len(upstream.wait_for(NAME, before + 1, chunks=3)) == before + 1
    return response


def ended(wire: Wire, response_id: str, *, taken_over: bool = False) -> Json:
    """Wait until a response has ended, check that its events are valid and agree with it, and return it."""
    wait_until(lambda: wire.retrieve(response_id)["status"] not in ("queued", "in_progress"))
    response = wire.retrieve(response_id)
    assert final(wire.replay(response_id, taken_over=taken_over)) == response
    return response


def cancel(wire: Wire, response_id: str) -> Json:
    """Cancel a response and return the answer."""
    answer = wire.http.post(f"/responses/{response_id}/cancel")
    assert answer.status_code == 200, answer.text
    return checked(answer)


def types(events: list[Json]) -> list[str]:
    """Return the events' types."""
    return [event["type"] for event in events]


def spoken(response: Json) -> list[tuple[str, str, str]]:
    """Return the type, status and text of each output item."""
    return [(item["type"], item["status"], output_text({"output": [item]})) for item in response["output"]]


def constant(response: Json) -> Json:
    """Return the fields that do not change while a response runs."""
    return {key: value for key, value in response.items() if key not in CHANGING}


# -- from the queue to the end -----------------------------------------------------


def test_background_response_with_unavailable_web_search_is_refused(small: LiveStack) -> None:
    with Wire(small) as wire:
        before = wire.listed(limit=1)
        body = {"model": MODEL, "input": "Count.", "background": True, "tools": [{"type": "web_search"}]}
        for stream in (False, True):
            found = error_of(wire.post({**body, "stream": stream}), 400)
            assert (found["param"], found["code"]) == ("tools[0].type", "unsupported_value")
        assert wire.listed(limit=1) == before


def test_background_response_is_queued_then_in_progress_then_completed(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, HELD)
    first = client.responses.create(model=MODEL, input="Count.", background=True, metadata={"ticket": "17"})
    assert (first.status, first.output, first.usage, first.background) == ("queued", [], None, True)
    wait_until(lambda: client.responses.retrieve(first.id).status == "in_progress")
    assert wire.retrieve(first.id)["output"] == []
    assert [each["status"] for each in wire.listed() if each["id"] == first.id] == ["in_progress"]
    upstream.wait_for(NAME, chunks=3)
    upstream.release(NAME)
    wait_until(lambda: client.responses.retrieve(first.id).status == "completed")
    response = stored(client, first.id)
    assert spoken(response)[1] == ("message", "completed", "one two three")
    assert response["usage"]["output_tokens"] == 4
    assert constant(response) == constant(first.to_dict())
    assert [each for each in wire.listed() if each["id"] == first.id] == [response]
    [item] = client.responses.input_items.list(first.id).data
    assert "Count." in item.to_json()


def test_background_response_equals_a_foreground_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(
        NAME, reply(reasoning("Hm."), text("Look: "), tool_call(0, "call_1", "weather", '{"city":', '"O"}'))
    )
    request: Json = {
        "model": MODEL,
        "input": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Weather?"}],
        "instructions": "Answer briefly.",
        "tools": [WEATHER],
        "temperature": 0.25,
        "max_output_tokens": 999,
        "reasoning": {"effort": "low"},
    }
    front = stream(client, **request)
    back = stream(client, background=True, **request)
    behind, before = upstream.requests(NAME)
    assert behind.body == before.body
    assert back.types[:3] == ["created", "queued", "in_progress"]
    assert back.types[3:] == front.types[2:]
    assert [item["type"] for item in back.response["output"]] == ["reasoning", "message", "function_call"]
    own = ("id", "created_at", "completed_at", "background", "output")
    assert {k: v for k, v in back.response.items() if k not in own} == {
        k: v for k, v in front.response.items() if k not in own
    }
    assert stored(client, back.response["id"]) == back.response
    assert wire.replay(back.response["id"]) == back.events


def test_background_response_at_token_limit_is_incomplete(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, reply(text("Half an ", "answer"), finish("length")))
    response = ended(wire, queue(wire)["id"])
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert spoken(response) == [("message", "incomplete", "Half an answer")]
    judged(response)


AT_ONCE = {"retry-after-ms": "1"}  # for the host's provider, which retries on its own
FAILURES: dict[str, Reply] = {
    "a refusal": error(400, "This is not supported with this model."),
    "too many": error(429, "Slow down.", headers=AT_ONCE),
    "an error": error(500, "Out of memory.", headers=AT_ONCE),
    "broken off": reply(COUNT, end="drop"),
    "an error in the stream": reply(COUNT, end="error_frame"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_model_server_failure_fails_the_background_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, failure: str
) -> None:
    upstream.script(NAME, FAILURES[failure])
    response = ended(wire, queue(wire)["id"])
    judged(response)
    assert response["status"] == "failed"
    assert len(response["error"]["message"]) > 5
    streamed = stream(client, model=MODEL, input="Count.", background=True)
    assert streamed.types[-2:] == ["error", "failed"]
    assert streamed.response["error"] == response["error"]
    assert stored(client, streamed.response["id"]) == streamed.response


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_background_with_store_false_is_400(wire: Wire, upstream: Upstream, streamed: bool) -> None:
    body = {"model": MODEL, "input": "Count.", "background": True, "store": False, "stream": streamed}
    assert error_of(wire.post(body), 400)["param"] == "store"
    assert upstream.requests() == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_invalid_background_request_is_refused_before_queueing(wire: Wire, upstream: Upstream, streamed: bool) -> None:
    body = {"model": MODEL, "input": "Count.", "background": True, "stream": streamed}
    assert error_of(wire.post(body | {"temperature": 17}), 400)["param"] == "temperature"
    assert error_of(wire.post(body | {"previous_response_id": "resp_" + "0" * 24}), 400)["code"] == (
        "previous_response_not_found"
    )
    for model in ("nowhere/x", "missing"):
        refused, expected = (
            wire.post({"model": model, "input": "x", "background": each, "stream": streamed}) for each in (True, False)
        )
        assert error_of(refused, 404) == error_of(expected, 404)
        assert error_of(refused, 404)["code"] == "model_not_found"
    assert upstream.requests() == []


def test_ignored_request_fields_of_queued_job_are_not_stored(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """An unknown field may hold a secret for another service."""
    upstream.script(NAME, HELD)
    response = running(wire, upstream, client_metadata={"key": "canary-ignored"}, instructions="canary-meant", seed=7)
    assert upstream.requests(NAME)[-1].body["seed"] == 7
    assert traces(stack.state_dir, "canary-meant")
    assert traces(stack.state_dir, "canary-ignored") == []
    upstream.release(NAME)
    ended(wire, response["id"])


@pytest.mark.extended
def test_many_queued_responses_keep_their_answers(wire: Wire, upstream: Upstream) -> None:
    """More responses than run at a time."""

    def ask(number: int) -> str:
        return str(queue(wire, model="local/echo", input=f"number {number}")["id"])

    with ThreadPoolExecutor(8) as clients:
        created = list(clients.map(ask, range(40)))
    for number, response_id in enumerate(created):
        assert output_text(ended(wire, response_id)) == f"number {number}"
    assert len(upstream.requests("echo")) == 40


# -- chains -----------------------------------------------------------------------


def test_chain_of_background_and_foreground_responses_keeps_history(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(tool_call(0, "call_1", "weather", '{"city":"Oslo"}')), reply(text("Rain."))])
    called = ended(wire, queue(wire, tools=[WEATHER])["id"])
    assert [(item["type"], item["call_id"]) for item in called["output"]] == [("function_call", "call_1")]
    result = [{"type": "function_call_output", "call_id": "call_1", "output": "wet"}]
    continued = ended(wire, queue(wire, tools=[WEATHER], input=result, previous_response_id=called["id"])["id"])
    assert output_text(continued) == "Rain."
    assert continued["previous_response_id"] == called["id"]
    front = wire.create(model=MODEL, input="Sure?", previous_response_id=continued["id"])
    last = ended(wire, queue(wire, input="Really?", previous_response_id=front["id"])["id"])
    assert roles_and_texts(upstream.requests(NAME)[-1].body["messages"]) == [
        ("user", "Count."),
        ("assistant", ""),
        ("tool", "wet"),
        ("assistant", "Rain."),
        ("user", "Sure?"),
        ("assistant", "Rain."),
        ("user", "Really?"),
    ]
    [page] = wire.pages(f"/{last['id']}/input_items", limit=100)
    assert len(page["data"]) == 7


def test_running_background_response_cannot_be_continued(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    first = running(wire, upstream)
    for body in ({}, {"background": True}, {"stream": True}):
        request = {"model": "local/echo", "input": "and?", "previous_response_id": first["id"], **body}
        refused = error_of(wire.post(request), 400)
        assert refused["param"] == "previous_response_id"
        assert first["id"] in refused["message"]
    upstream.release(NAME)
    ended(wire, first["id"])
    assert wire.create(model="local/echo", input="and?", previous_response_id=first["id"])["status"] == "completed"


# -- readers ----------------------------------------------------------------------


def test_concurrent_readers_see_the_same_events(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with ExitStack() as open_streams:
        first = open_streams.enter_context(Reader.create(wire, model=MODEL, input="Count.", background=True))
        first.read_to("two ")
        whole = open_streams.enter_context(Reader.of(wire, first.response_id))
        whole.read_to("two ")
        assert whole.events == first.events
        behind = range(first.last + 3)
        others = [open_streams.enter_context(Reader.of(wire, first.response_id, after)) for after in behind]
        upstream.release(NAME)
        events = first.read_to_end()
        assert output_text(check_stream(events)) == "one two three"
        assert whole.read_to_end() == events
        for after, other in zip(behind, others, strict=True):
            assert other.read_to_end() == events[after + 1 :]
    for after in range(-1, len(events) + 2):
        query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
        assert read_sse(wire.get(f"/{first.response_id}", **query).content).events == events[after + 1 :]


def test_client_disconnect_does_not_end_background_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, HELD)
    with Reader.create(wire, model=MODEL, input="Count.", background=True) as left:
        left.read_to("two ")
    with Reader.of(wire, left.response_id, 2) as left_too:
        left_too.read_to("two ")
    assert wire.retrieve(left.response_id)["status"] == "in_progress"
    with client.responses.with_streaming_response.retrieve(
        left.response_id, stream=True, starting_after=left.last
    ) as answer:
        upstream.release(NAME)
        rest = read_sse(answer.iter_bytes()).events
    assert output_text(check_stream(left.events + rest)) == "one two three"
    [request] = upstream.requests(NAME)
    assert request.ended == "completed"
    assert len(list(client.responses.retrieve(left.response_id, stream=True))) == len(left.events + rest)


def test_sdk_stream_helper_resumes_background_response(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with client.responses.stream(model=MODEL, input="Count.", background=True) as begun:
        seen = [next(begun)]
        while getattr(seen[-1], "delta", None) != "two ":
            seen.append(next(begun))
    first: Any = seen[0]
    upstream.release(NAME)
    after = seen[-1].sequence_number
    with client.responses.stream(response_id=first.response.id, starting_after=after) as again:
        rest = [event.sequence_number for event in again]
        assert again.get_final_response().output_text == "one two three"
    assert rest == list(range(after + 1, after + 1 + len(rest)))


# -- cancel, delete ---------------------------------------------------------------


def test_cancel_of_running_response_ends_its_generation(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with Reader.create(wire, model=MODEL, input="Count.", background=True) as reader:
        reader.read_to("two ")
        response: Json = client.responses.cancel(reader.response_id).to_dict()
        [request] = upstream.wait_for(NAME, ended=True)
        assert request.ended == "client_gone"
        events = reader.read_to_end()
    assert response["status"] == "cancelled"
    assert spoken(response)[1:] == [("message", "incomplete", "one two ")]
    assert check_stream(events) == response == wire.retrieve(response["id"])
    assert wire.replay(response["id"]) == events
    assert cancel(wire, response["id"]) == response
    assert wire.create(model="local/echo", input="Go on.", previous_response_id=response["id"])["status"] == "completed"
    assert ("assistant", "one two ") in roles_and_texts(upstream.requests("echo")[-1].body["messages"])


def test_cancel_of_completed_response_changes_nothing(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, WHOLE)
    response = ended(wire, queue(wire)["id"])
    assert response["status"] == "completed"
    assert cancel(wire, response["id"]) == response
    assert wire.retrieve(response["id"]) == response


def test_concurrent_cancels_return_the_same_response(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with Reader.create(wire, model=MODEL, input="Count.", background=True) as reader:
        reader.read_to("two ")
        with ThreadPoolExecutor(8) as clients:
            path = f"/responses/{reader.response_id}/cancel"
            answers = list(clients.map(lambda _: wire.http.post(path).json(), range(8)))
        response = check_stream(reader.read_to_end())
    assert response["status"] == "cancelled"
    assert answers == [response] * 8


def test_cancel_racing_with_completion_gives_one_outcome(wire: Wire, upstream: Upstream) -> None:
    """Whichever comes first, the cancel, the stream and the store agree."""
    upstream.script(NAME, HELD)
    for _ in range(8):
        with (
            Reader.create(wire, model=MODEL, input="Count.", background=True) as reader,
            ThreadPoolExecutor(1) as other,
        ):
            reader.read_to("two ")
            cancelling = other.submit(cancel, wire, reader.response_id)
            upstream.release(NAME)
            response = check_stream(reader.read_to_end())
        assert cancelling.result() == response == wire.retrieve(response["id"])
        assert response["status"] in ("cancelled", "completed")


def test_deletion_of_running_response_ends_its_generation(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with Reader.create(wire, model=MODEL, input="Count.", background=True) as reader:
        reader.read_to("two ")
        answer = wire.http.delete(f"/responses/{reader.response_id}")
        assert answer.json() == {"id": reader.response_id, "object": "response", "deleted": True}
        [request] = upstream.wait_for(NAME, ended=True)
        assert request.ended == "client_gone"
    for answer in wire.send_each_request(reader.response_id).values():
        error_of(answer, 404)
    assert reader.response_id not in {each["id"] for each in wire.listed(limit=100)}
    left = [key for key in records(stack.state_dir / "responses.db") if reader.response_id in key]
    assert [key for key in left if not key.startswith("t/")] == []  # the sweeper's expiry entry stays


# -- the queue --------------------------------------------------------------------


def test_full_queue_refuses_with_429_and_keeps_its_jobs(small: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with Wire(small) as wire, small.client() as client:
        created = [running(wire, upstream) for _ in range(2)]
        waiting = [queue(wire) for _ in range(2)]
        for streamed in (False, True):
            full = wire.post({"model": MODEL, "input": "Count.", "background": True, "stream": streamed})
            error_of(full, 429)
            assert int(full.headers["retry-after"]) > 0
        with pytest.raises(openai.RateLimitError):
            client.responses.create(model=MODEL, input="Count.", background=True)
        assert [wire.retrieve(each["id"])["status"] for each in created] == ["in_progress"] * 2
        assert [wire.retrieve(each["id"]) for each in waiting] == waiting
        assert ["Count." in wire.get(f"/{each['id']}/input_items").text for each in waiting] == [True, True]
        follow = {"model": "local/echo", "input": "and?", "previous_response_id": waiting[0]["id"]}
        assert error_of(wire.post(follow), 400)["param"] == "previous_response_id"
        assert wire.create(model="local/echo", input="What is not queued has room.")["status"] == "completed"

        check_cancel_in_the_queue(wire, waiting[0]["id"])
        assert wire.http.delete(f"/responses/{waiting[1]['id']}").status_code == 200
        error_of(wire.get(f"/{waiting[1]['id']}"), 404)
        with Reader.create(wire, model=MODEL, input="Count.", background=True) as reader:
            reader.read_to("response.queued")
            upstream.release(NAME)
            assert [ended(wire, each["id"])["status"] for each in created] == ["completed"] * 2
            upstream.wait_for(NAME, 3, chunks=3)
            upstream.release(NAME)
            events = reader.read_to_end()
    assert types(events)[:3] == OPENING
    assert check_stream(events)["status"] == "completed"
    assert len(upstream.requests(NAME)) == 3


def check_cancel_in_the_queue(wire: Wire, response_id: str) -> None:
    """Check that a cancel of a queued response reaches its readers, whatever they have read before."""
    with Reader.of(wire, response_id) as reader, Reader.of(wire, response_id, 0) as other:
        reader.read_to("response.queued")
        response = cancel(wire, response_id)
        events = reader.read_to_end()
        assert other.read_to_end() == events[1:]
    assert types(events) == [*OPENING, "response.incomplete"]
    assert check_stream(events) == response == cancel(wire, response_id) == wire.retrieve(response_id)
    assert (response["status"], response["output"]) == ("cancelled", [])


# -- servers that end -------------------------------------------------------------


def test_killed_server_resumes_running_and_queued_responses(small: LiveStack, upstream: Upstream) -> None:
    """Jobs continue after the restart without any request, and each is in its conversation once."""
    upstream.script("read", [CALLING, WHOLE])
    upstream.script("unread", [HELD, WHOLE])
    upstream.script("waiting", WHOLE)
    with Wire(small) as wire:
        conversation_id = wire.http.post("/conversations", json={}).json()["id"]
        unread = queue(wire, model="local/unread", conversation=conversation_id)["id"]
        request = {"model": "local/read", "input": "Count.", "tools": [WEATHER], "background": True}
        with Reader.create(wire, **request) as reader:
            reader.read_to('{"city":')
            upstream.wait_for("unread", chunks=3)
            waiting = queue(wire, model="local/waiting", conversation=conversation_id)["id"]
            small.kill()
            reader.read_to_death()
    for model in ("read", "unread"):
        assert upstream.wait_for(model, ended=True)[0].ended == "client_gone"
    small.start()
    for model, times in (("waiting", 1), ("read", 2), ("unread", 2)):
        upstream.wait_for(model, times, ended=True)
    with Wire(small) as wire, Reader.of(wire, reader.response_id, reader.last) as again:
        events = reader.events + again.read_to_end()
        assert check_stream(events, taken_over=True) == ended(wire, reader.response_id, taken_over=True)
        assert wire.replay(reader.response_id, taken_over=True) == events
        response = final(events)
        assert [kind for kind, *_ in spoken(response)] == ["reasoning", "message"]
        with (
            small.client() as client,
            client.responses.stream(response_id=response["id"], starting_after=0) as whole,
            client.responses.stream(response_id=response["id"], starting_after=reader.last) as rest,
        ):
            for helper in (whole, rest):
                assert helper.get_final_response().output_text == "one two three"
            assert client.responses.retrieve(response["id"]).output_text == "one two three"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "reasoning", "message"]
        assert (done[2]["status"], done[2]["arguments"]) == ("incomplete", '{"city":')
        wire.create(model="local/echo", input="Go on.", previous_response_id=response["id"])
        assert "tool_calls" not in str(upstream.requests("echo")[0].body["messages"])
        for response_id in (unread, waiting):
            response = ended(wire, response_id, taken_over=True)
            assert [kind for kind, *_ in spoken(response)] == ["reasoning", "message"]
            assert spoken(response)[1] == ("message", "completed", "one two three")
            assert response["usage"]["output_tokens"] == 4
        items = wire.http.get(f"/conversations/{conversation_id}/items", params={"order": "asc"}).json()["data"]
        assert [item["type"] for item in items] == ["message", "reasoning", "message"] * 2
    assert [len(upstream.requests(model)) for model in ("read", "unread", "waiting")] == [2, 2, 1]


def test_stopped_server_hands_over_running_responses(small: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, [HELD, WHOLE])
    upstream.script("flood", reply(text(*["word " * 1000] * 8000)))
    flood = {"model": "local/flood", "input": "x", "stream": True}
    before = small.log.stat().st_size
    with (
        Wire(small) as wire,
        Reader.create(wire, model=MODEL, input="Count.", background=True) as reader,
        SocketClient(small, flood, buffer=32_768) as stalled,
    ):
        reader.read_to("two ")
        stalled.read_until(b"event: response.output_text.delta")
        # A client that does not read cannot delay the shutdown.
        assert small.stop() != -signal.SIGKILL
        reader.read_to_cut()
        assert not reader.done
    assert upstream.wait_for(NAME, ended=True)[0].ended == "client_gone"
    assert_no_traceback(small.log, before)
    small.start()
    with Wire(small) as wire, Reader.of(wire, reader.response_id, reader.last) as again:
        events = reader.events + again.read_to_end()
        assert check_stream(events, taken_over=True) == wire.retrieve(reader.response_id)
        assert wire.replay(reader.response_id, taken_over=True) == events
        [unread] = wire.listed(model="local/flood")
        assert (unread["status"], unread["error"]["message"]) == ("failed", "The server is shutting down. Try again.")
    assert output_text(final(events)) == "one two three"
    assert [each.ended for each in upstream.requests(NAME)] == ["client_gone", "completed"]


def test_provider_key_of_job_reaches_the_model_server_without_a_configured_secret(
    wire: Wire, upstream: Upstream
) -> None:
    """It is sealed with the secret that the server keeps beside its SQLite file."""
    keys = dict.fromkeys(("X-LlamaStack-Provider-Data", "X-OGX-Provider-Data"), '{"openai_chat_api_key": "sk-mine"}')
    answer = wire.http.post("/responses", json={"model": "local/echo", "input": "x", "background": True}, headers=keys)
    wait_until(lambda: wire.retrieve(checked(answer)["id"])["status"] == "completed")
    keys["idempotency-key"] = "with keys"
    answer = wire.http.post("/responses", json={"model": "local/echo", "input": "x"}, headers=keys)
    assert checked(answer)["status"] == "completed"
    assert [each.headers["authorization"] for each in upstream.requests("echo")] == ["Bearer sk-mine"] * 2
