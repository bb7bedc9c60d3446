"""Clients that disconnect, and clients that read slowly."""

import socket
import time
from contextlib import ExitStack, suppress

import openai
import pytest

from tests.support.memory import resident_bytes
from tests.support.socket_client import HEAD_OF_A_MESSAGE, UNFINISHED, SocketClient, disconnect_after, handshake
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, error, reasoning, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

SOON = 30.0  # seconds in which the model server must see the disconnect; its answer would never end
TOOL: Json = {"type": "function", "name": "f", "parameters": {}}


def stored(wire: Wire, model: str) -> Json:
    """Wait for the one stored response of this model, check its events, and return it."""
    wait_until(lambda: wire.listed(model=model) != [])
    [response] = wire.listed(model=model)
    assert final(wire.replay(response["id"])) == wire.retrieve(response["id"]) == response
    return response


def check_generation_ended(upstream: Upstream, model: str, left: float) -> None:
    """Check that the model server's connection was closed soon after the client disconnected."""
    [record] = upstream.wait_for(model, ended=True)
    assert record.ended == "client_gone"
    assert record.ended_at is not None
    assert 0 <= record.ended_at - left < SOON


# By the moment of the disconnect: the model server's answer, and how many of its chunks were sent before.
MOMENTS: dict[str, tuple[Reply, int]] = {
    "before the status line": (reply(text("never"), delay=60), 0),
    "before the first word": (reply(text("never"), hold=0), 0),
    "in the middle": (reply(reasoning("hm"), text("Half an ", "answer", "never"), hold=3), 3),
    "in a call": (reply(text("So: "), tool_call(0, "call_1", "f", '{"a":', "never"), hold=3), 3),
    "in a silence at the end": (reply(text("All ", "of it."), end="hang"), 2),
}
SAID = {
    "before the status line": [],
    "before the first word": [],
    "in the middle": [("reasoning", "hm"), ("message", "Half an answer")],
    "in a call": [("message", "So: "), ("function_call", '{"a":')],
    "in a silence at the end": [("message", "All of it.")],
}


def spoken(item: Json) -> tuple[str, str]:
    """Return an item's type and its text or arguments."""
    if item["type"] == "function_call":
        return "function_call", item["arguments"]
    return item["type"], "".join(part["text"] for part in item["content"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_client_disconnect_ends_generation_and_stores_partial_output(
    stack: LiveStack, wire: Wire, upstream: Upstream, provider: str, moment: str, stream: bool
) -> None:
    script, chunks = MOMENTS[moment]
    model = f"leave-{moment.replace(' ', '-')}-{stream}-{provider}"
    upstream.script(model, script)
    with SocketClient(
        stack, {"model": f"{provider}/{model}", "input": "x", "stream": stream, "tools": [TOOL]}
    ) as client:
        upstream.wait_for(model, chunks=chunks)
        if stream and script.delay == 0:
            last = SAID[moment][-1][1].split()[-1] if SAID[moment] else "event: response.in_progress"
            client.read_until(last.replace('"', '\\"').encode())
        elif not stream:
            # When another request has completed, the stack has read the chunks that were sent before it.
            wire.create(model="local/echo", input="x", store=False)
        left = client.disconnect()
        check_generation_ended(upstream, model, left)
    response = stored(wire, f"{provider}/{model}")
    assert response["status"] == "cancelled"
    assert [spoken(item) for item in response["output"]] == SAID[moment]
    assert response["output"] == [] or response["output"][-1]["status"] == "incomplete"
    assert response["error"] is None


def test_client_disconnect_with_a_pipelined_request_ends_generation(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """The server notices the disconnect when it writes, since it does not read while a request waits."""
    upstream.script("pipelined", reply(text(*[f"word{number} " for number in range(600)]), interval=0.1))
    with SocketClient(stack, {"model": "local/pipelined", "input": "x", "stream": True}) as client:
        client.read_until(b"word1 ")
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        client.read_until(b"word15 ")
        check_generation_ended(upstream, "pipelined", client.disconnect())
    assert stored(wire, "local/pipelined")["status"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_websocket_that_is_opened_behind_an_unanswered_request_ends_the_connection(
    stack: LiveStack, wire: Wire, upstream: Upstream, stream: bool
) -> None:
    """The answer does not reach the WebSocket, and the generation ends with the connection."""
    model = f"upgraded-{stream}"
    upstream.script(model, reply(text("Half an ", "answer", "never"), hold=2))
    with SocketClient(stack, {"model": f"local/{model}", "input": "x", "stream": stream}) as client:
        upstream.wait_for(model, chunks=2)
        sent_at = time.monotonic()
        client.send(handshake({}))
        check_generation_ended(upstream, model, sent_at)
        assert b"101 Switching" not in client.read_to_end()
    assert stored(wire, f"local/{model}")["status"] == "cancelled"


def test_client_disconnect_before_model_server_answers_ends_generation(early: LiveStack, upstream: Upstream) -> None:
    upstream.script("patient", reply(text("never"), delay=60))
    with SocketClient(early, {"model": "local/patient", "input": "x", "stream": True}) as client:
        upstream.wait_for("patient")
        client.read_until(b"event: response.in_progress")
        check_generation_ended(upstream, "patient", client.disconnect())
    with Wire(early) as wire:
        assert stored(wire, "local/patient")["status"] == "cancelled"


def test_client_disconnect_during_retry_delay_stops_retries(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """The host's provider retries after a 429, but not for a client that has disconnected."""
    upstream.script("full", error(429, "queue is full", headers={"retry-after": "30"}))
    with SocketClient(stack, {"model": "vllm/full", "input": "x", "stream": True}) as client:
        upstream.wait_for("full", ended=True)
        client.disconnect()
    assert stored(wire, "vllm/full")["status"] == "cancelled"
    assert len(upstream.requests("full")) == 1


def test_response_cancelled_by_disconnect_can_be_continued(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("go-on", [reply(text("Half an ", "answer"), hold=2), reply(text("The rest."))])
    with SocketClient(stack, {"model": "local/go-on", "input": "Go.", "stream": True}) as client:
        client.read_until(b"answer")
        client.disconnect()
    cancelled = stored(wire, "local/go-on")
    response = wire.create(model="local/go-on", input="Go on.", previous_response_id=cancelled["id"])
    assert output_text(response) == "The rest."
    messages = upstream.requests("go-on")[-1].body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


def test_client_disconnect_after_last_event_leaves_response_completed(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    upstream.script("bye", reply(text("All of it.")))
    with SocketClient(stack, {"model": "local/bye", "input": "x", "stream": True}) as client:
        client.read_until(b"event: response.completed")
        client.disconnect()
    assert stored(wire, "local/bye")["status"] == "completed"


def test_client_disconnect_with_store_false_stores_nothing(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("unstored", reply(text("Half an ", "answer"), hold=2))
    with SocketClient(stack, {"model": "local/unstored", "input": "x", "stream": True, "store": False}) as client:
        client.read_until(b"answer")
        check_generation_ended(upstream, "unstored", client.disconnect())
    wire.create(model="local/echo", input="x")  # stored after anything that the request before it might have stored
    assert wire.listed(model="local/unstored") == []


CHUNKS = 8_000  # all of them are just within `limits.output_bytes`
WORDS = "word " * 800  # one chunk that becomes one event; the kernel's own buffers hold some thousands of them


@pytest.mark.extended
def test_stalled_reader_applies_backpressure_to_the_model_server(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """Output waits in the model server, not in this server, and the client gets all of it once it reads."""
    upstream.script("flood", reply(text(*[WORDS] * CHUNKS)))
    body: Json = {"model": "local/flood", "input": "x", "stream": True, "store": False}
    before = memory(stack)
    with SocketClient(stack, body, buffer=32_768) as client:
        assert stalled(upstream, 1) < 0.75 * CHUNKS
        assert memory(stack) - before < 24  # of the 32 that the whole answer has
        assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"
        answer = client.read_all()
    assert answer.count(b"event: response.output_text.delta\n") == CHUNKS
    assert answer.count(b"event: response.completed\n") == 1
    assert answer.index(b"data: [DONE]") > answer.index(b"event: response.completed\n")
    assert upstream.requests("flood")[-1].ended == "completed"

    with SocketClient(stack, body, buffer=32_768) as client:
        assert stalled(upstream, 2) < 0.75 * CHUNKS
        left = client.disconnect()
        record = upstream.wait_for("flood", count=2, ended=True)[-1]
    assert record.ended == "client_gone"
    assert (record.ended_at or 0) - left < SOON


HASTY = 400


@pytest.mark.parametrize("kind", UNFINISHED)
def test_clients_disconnecting_within_a_body_do_not_delay_other_requests(
    stack: LiveStack, client: openai.OpenAI, wire: Wire, kind: str
) -> None:
    """Each disconnect logs one debug line. Tracebacks instead, which `calm` refuses, would take the server minutes."""
    container = client.containers.create(name="left")
    begin = UNFINISHED[kind](container.id, {})
    for _ in range(HASTY):
        disconnect_after(stack, begin)
    assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"
    client.containers.delete(container.id)


@pytest.mark.extended
def test_aborted_websocket_handshakes_and_messages_do_not_delay_requests(stack: LiveStack, wire: Wire) -> None:
    for number in range(HASTY):
        disconnect_after(stack, handshake({}), HEAD_OF_A_MESSAGE if number % 2 else b"")
    assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"


def test_endless_upload_is_413_and_its_connection_is_closed(stack: LiveStack, client: openai.OpenAI) -> None:
    container = client.containers.create(name="endless")
    head = f"POST /v1/containers/{container.id}/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    head += "content-type: multipart/form-data; boundary=b\r\n\r\n"
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    block = b"x" * 2**20
    sent = 0
    with socket.create_connection(("127.0.0.1", stack.port), 60) as endless:
        endless.sendall(head.encode() + b"%x\r\n%b\r\n" % (len(form), form))
        with suppress(ConnectionError):
            while sent < 200:
                endless.sendall(b"%x\r\n%b\r\n" % (len(block), block))
                sent += 1
        with suppress(ConnectionError):
            assert endless.recv(65_536).startswith(b"HTTP/1.1 413")
    assert 64 <= sent < 100
    assert list(client.containers.files.list(container.id)) == []
    client.containers.delete(container.id)


FOLLOWED = 3_750  # chunks: 15 megabytes
READERS = 48


@pytest.mark.extended
def test_stalled_readers_of_background_response_delay_nothing_within_bounded_memory(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """The response runs to its end, and its events wait for the readers in the store."""
    upstream.script("followed", reply(text(*[WORDS] * FOLLOWED)))
    before = memory(stack)
    response = wire.post({"model": "local/followed", "input": "x", "background": True}).json()
    path = f"/v1/responses/{response['id']}?stream=true"
    with ExitStack() as open_all:
        readers = [open_all.enter_context(SocketClient(stack, None, 32_768, path)) for _ in range(READERS)]
        assert upstream.wait_for("followed", ended=True)[0].ended == "completed"
        wait_until(lambda: wire.retrieve(response["id"])["status"] == "completed")
        assert memory(stack) - before < 300  # of the 720 that all readers still have to get
        for reader in (readers[0], readers[-1]):
            assert reader.read_all().count(b"event: response.output_text.delta\n") == FOLLOWED


MANY = 60
FILE = 16 * 2**20


@pytest.mark.extended
def test_stalled_readers_of_a_file_hold_one_block_each(stack: LiveStack, client: openai.OpenAI) -> None:
    """A reader that continues gets the rest, even if the file has been deleted meanwhile."""
    container = client.containers.create(name="read slowly")
    file = client.containers.files.create(container.id, file=("large.bin", b"x" * FILE))
    path = f"/v1/containers/{container.id}/files/{file.id}/content"
    before = memory(stack)
    with ExitStack() as open_all:
        readers = [open_all.enter_context(SocketClient(stack, None, 32_768, path)) for _ in range(MANY)]
        for reader in readers:
            reader.read_until(b"content-length: %d\r\n" % FILE)
        assert memory(stack) - before < 60  # of the 960 that all readers still have to get
        client.containers.delete(container.id)
        readers[-1].read_until(b"x" * FILE)


SAID_LONG = 2_000  # chunks: 8 megabytes


@pytest.mark.extended
def test_stalled_readers_of_a_replay_share_one_copy_of_the_response(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    upstream.script("long", reply(text(*[WORDS] * SAID_LONG)))
    response = wire.create(model="local/long", input="x")
    path = f"/v1/responses/{response['id']}?stream=true"
    before = memory(stack)
    with ExitStack() as open_all:
        readers = [open_all.enter_context(SocketClient(stack, None, 32_768, path)) for _ in range(MANY)]
        for reader in readers:
            reader.read_until(b"event: response.created")
        assert memory(stack) - before < 120  # of the 2,400 that all readers still have to get
        answer = readers[-1].read_all()
    assert answer.count(b"event: response.completed\n") == 1
    assert len(answer) > 5 * len(WORDS) * SAID_LONG - 2**20  # the delta, and four events with the whole text


def stalled(upstream: Upstream, flood: int) -> int:
    """Return how many chunks of this flood the model server has sent when none has followed for half a second."""
    upstream.wait_for("flood", count=flood)
    sent, unchanged = 0, 0
    while sent == 0 or unchanged < 5:
        time.sleep(0.1)
        now = upstream.requests("flood")[-1].chunks_sent
        unchanged = unchanged + 1 if now == sent else 0
        sent = now
    return sent


def memory(stack: LiveStack) -> float:
    """Return the resident memory of the stack's process in MiB."""
    return resident_bytes(stack.pid) / 2**20
