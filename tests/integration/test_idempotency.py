"""Requests with an Idempotency-Key: repeated requests give one response."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.support.openai_client import MODEL, NAME
from tests.support.reader import Reader
from tests.support.socket_client import SocketClient
from tests.support.stack import LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Reply, Upstream, error, reasoning, reply, text
from tests.support.variants import records, traces
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, events_of, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

COUNT = [*reasoning("Hm."), *text("one ", "two ", "three")]
HELD = reply(COUNT, hold=3)
WHOLE = reply(COUNT)
ASKED: Json = {"model": MODEL, "input": "Count."}
AT_ONCE = {"retry-after-ms": "1"}  # for the host's provider, which retries on its own
REFUSALS: dict[int, Reply] = {
    400: error(400, "This is not supported with this model."),
    404: error(404, "There is no such model."),
    429: error(429, "Slow down, please.", headers=AT_ONCE),
    502: error(500, "Out of memory.", headers=AT_ONCE),
}
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def send(wire: Wire, key: str, **body: Any) -> httpx.Response:
    """Send a request with this key and return the answer."""
    return wire.http.post("/responses", json=ASKED | body, headers={"idempotency-key": key})


def response_of(answer: httpx.Response) -> Json:
    """Return the response of an answer, from its JSON or its events."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return final(events_of(answer))
    assert answer.status_code == 200, answer.text
    return checked(answer)


def replayed(answer: httpx.Response) -> bool:
    """Return whether the answer is marked as a replay of an earlier request's."""
    return "idempotent-replayed" in answer.headers


def reading(wire: Wire, key: str, **body: Any) -> Reader:
    """Return a reader of the stream of a request with this key."""
    request = ASKED | {"stream": True, **body}
    return Reader(wire.http.stream("POST", "/responses", json=request, headers={"idempotency-key": key}))


@BOTH_WAYS
def test_repeated_key_returns_the_same_response(wire: Wire, upstream: Upstream, stream: bool) -> None:
    upstream.script(NAME, WHOLE)
    first, again = (send(wire, f"again-{stream}", stream=stream) for _ in range(2))
    assert (replayed(first), replayed(again)) == (False, True)
    assert again.content == first.content
    response = response_of(first)
    assert (response["status"], response["background"], output_text(response)) == ("completed", False, "one two three")
    assert wire.retrieve(response["id"]) == response
    assert len(upstream.requests(NAME)) == 1
    other = response_of(send(wire, f"other-{stream}", stream=stream))
    assert other["id"] != response["id"]
    assert len(upstream.requests(NAME)) == 2


def test_response_with_key_equals_one_without(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, WHOLE)
    plain = wire.stream(**ASKED)
    keyed = events_of(send(wire, "plain", stream=True))
    assert [each["type"] for each in keyed] == [each["type"] for each in plain]
    own = ("id", "created_at", "completed_at", "output")
    assert {k: v for k, v in final(keyed).items() if k not in own} == {
        k: v for k, v in final(plain).items() if k not in own
    }
    assert upstream.requests(NAME)[0].body == upstream.requests(NAME)[1].body
    assert wire.replay(final(keyed)["id"]) == keyed
    follow = wire.create(model="local/echo", input="and?", previous_response_id=final(keyed)["id"])
    assert follow["status"] == "completed"


def test_concurrent_requests_with_one_key_share_one_response(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(send, wire, "many") for _ in range(8)]
        upstream.wait_for(NAME, chunks=3)
        upstream.release(NAME)
        responses = [response_of(answer.result()) for answer in answers]
    assert responses == [responses[0]] * 8
    assert sum(not replayed(answer.result()) for answer in answers) == 1
    assert len(upstream.requests(NAME)) == 1


def test_repeated_key_joins_a_running_stream_from_its_start(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with reading(wire, "joined") as first:
        first.read_to("two ")
        with reading(wire, "joined") as other:
            other.read_to("two ")
            assert other.events == first.events
            upstream.release(NAME)
            assert other.read_to_end() == first.read_to_end()
    assert output_text(check_stream(first.events)) == "one two three"
    assert len(upstream.requests(NAME)) == 1


@BOTH_WAYS
def test_repeated_key_after_disconnect_returns_the_response(
    wire: Wire, stack: LiveStack, upstream: Upstream, stream: bool
) -> None:
    upstream.script(NAME, HELD)
    key = f"left-{stream}"
    if stream:
        with reading(wire, key) as left:
            left.read_to("two ")
    else:
        with SocketClient(stack, ASKED | {"stream": False}, headers={"idempotency-key": key}):
            upstream.wait_for(NAME, chunks=3)
    upstream.wait_for(NAME, chunks=3)
    upstream.release(NAME)
    response = response_of(send(wire, key, stream=stream))
    assert (response["status"], output_text(response)) == ("completed", "one two three")
    [request] = upstream.requests(NAME)
    assert request.ended == "completed"


@BOTH_WAYS
def test_different_request_with_a_used_key_is_409(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, stream: bool
) -> None:
    upstream.script(NAME, WHOLE)
    key = f"conflict-{stream}"
    response = response_of(send(wire, key, stream=stream))
    for change in ({"input": "Other."}, {"stream": not stream}, {"background": True}):
        refused = send(wire, key, **{"stream": stream, **change})
        assert error_of(refused, 409)["code"] == "idempotency_key_reused"
        # Without this header, the openai package retries every 409.
        assert refused.headers["x-should-retry"] == "false"
    with pytest.raises(openai.ConflictError):
        client.responses.create(model=MODEL, input="Other.", extra_headers={"Idempotency-Key": key})
    assert response_of(send(wire, key, stream=stream)) == response
    assert len(upstream.requests(NAME)) == 1


@BOTH_WAYS
@pytest.mark.parametrize("status", REFUSALS)
def test_model_server_refusal_releases_the_key(
    wire: Wire, stack: LiveStack, upstream: Upstream, status: int, stream: bool
) -> None:
    upstream.script(NAME, REFUSALS[status])
    key = f"refused-{status}-{stream}"
    before = records(stack.state_dir / "responses.db").keys()
    plain = error_of(wire.post(ASKED | {"stream": stream}), status)
    assert error_of(send(wire, key, stream=stream), status) == plain
    left = records(stack.state_dir / "responses.db").keys() - before
    assert [row for row in left if row[0] != "o"] == []
    upstream.script(NAME, WHOLE)
    answer = send(wire, key, stream=stream)
    assert not replayed(answer)
    assert output_text(response_of(answer)) == "one two three"


def test_waiting_request_is_sent_again_after_a_refusal(wire: Wire, upstream: Upstream) -> None:
    """A request that waits for another one with its key runs itself when the other is refused."""
    upstream.script(NAME, [error(400, "Not now.", delay=0.5), WHOLE])
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(send, wire, "anew") for _ in range(2)]
    assert sorted(answer.result().status_code for answer in answers) == [200, 400]
    assert len(upstream.requests(NAME)) == 2


def test_invalid_request_releases_the_key(wire: Wire, upstream: Upstream) -> None:
    error_of(send(wire, "wrong", temperature=17), 400)
    error_of(send(wire, "wrong", previous_response_id="resp_" + "0" * 24), 400)
    assert upstream.requests() == []
    upstream.script(NAME, WHOLE)
    assert response_of(send(wire, "wrong"))["status"] == "completed"


@BOTH_WAYS
def test_repeated_key_returns_a_failed_response_again(wire: Wire, upstream: Upstream, stream: bool) -> None:
    upstream.script(NAME, [reply(COUNT[:3], end="error_frame"), WHOLE])
    answers = [send(wire, f"failed-{stream}", stream=stream) for _ in range(2)]
    assert answers[0].content == answers[1].content
    response = response_of(answers[0])
    assert (response["status"], output_text(response)) == ("failed", "one two ")
    assert wire.retrieve(response["id"]) == response
    assert len(upstream.requests(NAME)) == 1


@BOTH_WAYS
def test_repeated_key_joins_a_background_response(wire: Wire, upstream: Upstream, stream: bool) -> None:
    upstream.script(NAME, HELD)
    key = f"background-{stream}"
    if stream:
        with reading(wire, key, background=True) as first, reading(wire, key, background=True) as other:
            first.read_to("two ")
            other.read_to("two ")
            upstream.release(NAME)
            assert first.read_to_end() == other.read_to_end()
    else:
        queued = checked(send(wire, key, background=True))
        assert queued["status"] == "queued"
        upstream.wait_for(NAME, chunks=3)
        again = send(wire, key, background=True)
        assert (replayed(again), checked(again)["id"]) == (True, queued["id"])
        assert checked(again)["status"] == "in_progress"
        upstream.release(NAME)
        wait_until(lambda: wire.retrieve(queued["id"])["status"] == "completed")
        assert checked(send(wire, key, background=True)) == wire.retrieve(queued["id"])
    assert len(upstream.requests(NAME)) == 1


def test_repeated_key_of_deleted_response_is_409(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)
    with reading(wire, "deleted") as reader:
        reader.read_to("two ")
        assert error_of(wire.http.post(f"/responses/{reader.response_id}/cancel"), 400)
        assert wire.http.delete(f"/responses/{reader.response_id}").status_code == 200
        assert upstream.wait_for(NAME, ended=True)[0].ended == "client_gone"
    assert "no longer stored" in error_of(send(wire, "deleted", stream=True), 409)["message"]
    assert len(upstream.requests(NAME)) == 1


def test_key_with_store_false_is_400(wire: Wire, upstream: Upstream) -> None:
    assert error_of(send(wire, "unstored", store=False), 400)["param"] == "store"
    assert upstream.requests() == []


@pytest.mark.parametrize("keys", [[""], ["x" * 256], ["a\tb"], ["a", "b"]])
def test_invalid_idempotency_key_is_400(wire: Wire, upstream: Upstream, keys: list[str]) -> None:
    headers = [("idempotency-key", key) for key in keys]
    answer = wire.http.post("/responses", json=ASKED, headers=headers)
    assert error_of(answer, 400)["code"] == "invalid_idempotency_key"
    assert upstream.requests() == []


def test_sdk_with_generated_keys_sends_one_key_for_all_retries(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, [HELD, WHOLE])
    with stack.client(timeout=0.5).with_options(max_retries=8) as client:
        client._idempotency_header = "Idempotency-Key"
        sent: list[str] = []
        client._client.event_hooks = {"request": [lambda request: sent.append(request.headers["idempotency-key"])]}
        with ThreadPoolExecutor(1) as other:
            pending = other.submit(client.responses.create, model=MODEL, input="Count.")
            wait_until(lambda: len(sent) > 1)
            client.timeout = 60.0  # of the next retry: a busy machine takes longer than half a second to answer
            upstream.wait_for(NAME, chunks=3)
            upstream.release(NAME)
            first = pending.result()
        assert len(set(sent)) == len(upstream.requests(NAME)) == 1
        assert client.responses.create(model=MODEL, input="Count.").id != first.id
    assert len(upstream.requests(NAME)) == 2


def test_key_of_maximum_length_is_not_stored_in_plain_text(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, WHOLE)
    key = "a key that is seen nowhere, ".ljust(255, "~")
    assert response_of(send(wire, key)) == response_of(send(wire, key))
    assert traces(stack.state_dir, "a key that is seen nowhere") == []
