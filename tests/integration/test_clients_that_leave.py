"""Clients that go away, and clients that read slowly."""

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import openai
import pytest

from tests.support.leaver import HEAD_OF_A_MESSAGE, UNFINISHED, Leaver, handshake, leave_after
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, error, reasoning, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

SOON = 30.0  # seconds in which the model server must see that nobody waits any more; it would go on for ever
TOOL: Json = {"type": "function", "name": "f", "parameters": {}}


def stored(wire: Wire, model: str) -> Json:
    """The one response of this model, as soon as it is there."""
    wait_until(lambda: wire.listed(model=model) != [])
    [response] = wire.listed(model=model)
    assert final(wire.replay(response["id"])) == wire.retrieve(response["id"]) == response
    return response


def check_generation_ended(upstream: Upstream, model: str, left: float) -> None:
    """The model server saw the client go, soon."""
    [record] = upstream.wait_for(model, ended=True)
    assert record.ended == "client_gone"
    assert record.ended_at is not None
    assert 0 <= record.ended_at - left < SOON


# When the client leaves: how the model server answers, and how many chunks of it have come by then.
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
    """An item's type and what was said in it."""
    if item["type"] == "function_call":
        return "function_call", item["arguments"]
    return item["type"], "".join(part["text"] for part in item["content"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_client_that_leaves_ends_the_generation_and_what_was_said_is_kept(
    stack: LiveStack, wire: Wire, upstream: Upstream, provider: str, moment: str, stream: bool
) -> None:
    script, chunks = MOMENTS[moment]
    model = f"leave-{moment.replace(' ', '-')}-{stream}-{provider}"
    upstream.script(model, script)
    with Leaver(stack, {"model": f"{provider}/{model}", "input": "x", "stream": stream, "tools": [TOOL]}) as client:
        upstream.wait_for(model, chunks=chunks)
        if stream and script.delay == 0:
            last = SAID[moment][-1][1].split()[-1] if SAID[moment] else "event: response.in_progress"
            client.read_until(last.replace('"', '\\"').encode())
        elif not stream:
            # By the end of a whole other request, the stack has long taken the chunks that were sent before it.
            wire.create(model="local/echo", input="x", store=False)
        left = client.leave()
        check_generation_ended(upstream, model, left)
    response = stored(wire, f"{provider}/{model}")
    assert response["status"] == "cancelled"
    assert [spoken(item) for item in response["output"]] == SAID[moment]
    assert response["output"] == [] or response["output"][-1]["status"] == "incomplete"
    assert response["error"] is None


def test_a_client_that_waits_for_late_headers_leaves(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """After two seconds the stream's headers go out although the model server has not answered."""
    upstream.script("patient", reply(text("never"), delay=60))
    with Leaver(stack, {"model": "local/patient", "input": "x", "stream": True}) as client:
        client.read_until(b"event: response.in_progress")
        check_generation_ended(upstream, "patient", client.leave())
    assert stored(wire, "local/patient")["status"] == "cancelled"


def test_a_client_leaves_while_the_model_server_is_asked_again(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """The host's provider asks a queue that was full again after a while, but not for a client that is gone."""
    upstream.script("full", error(429, "queue is full", headers={"retry-after": "30"}))
    with Leaver(stack, {"model": "vllm/full", "input": "x", "stream": True}) as client:
        upstream.wait_for("full", ended=True)
        client.leave()
    assert stored(wire, "vllm/full")["status"] == "cancelled"
    assert len(upstream.requests("full")) == 1


def test_what_a_client_left_can_be_continued(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("go-on", [reply(text("Half an ", "answer"), hold=2), reply(text("The rest."))])
    with Leaver(stack, {"model": "local/go-on", "input": "Go.", "stream": True}) as client:
        client.read_until(b"answer")
        client.leave()
    cancelled = stored(wire, "local/go-on")
    response = wire.create(model="local/go-on", input="Go on.", previous_response_id=cancelled["id"])
    assert output_text(response) == "The rest."
    messages = upstream.requests("go-on")[-1].body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


def test_a_client_that_leaves_with_the_last_event_has_a_whole_response(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    upstream.script("bye", reply(text("All of it.")))
    with Leaver(stack, {"model": "local/bye", "input": "x", "stream": True}) as client:
        client.read_until(b"event: response.completed")
        client.leave()
    assert stored(wire, "local/bye")["status"] == "completed"


def test_nothing_is_kept_of_an_unstored_response_that_a_client_left(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    upstream.script("unstored", reply(text("Half an ", "answer"), hold=2))
    with Leaver(stack, {"model": "local/unstored", "input": "x", "stream": True, "store": False}) as client:
        client.read_until(b"answer")
        check_generation_ended(upstream, "unstored", client.leave())
    wire.create(model="local/echo", input="x")  # stored after whatever the one before it might have stored
    assert wire.listed(model="local/unstored") == []


CHUNKS = 6_500  # all of them are just within `limits.output_bytes`
WORDS = "word " * 1_000  # one chunk; many such, because the kernel's own buffers hold some thousands of them


def test_a_reader_that_stalls_stalls_the_model_server(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """It gets everything once it reads, and what waits for it waits at the model server and not in this server."""
    upstream.script("flood", reply(text(*[WORDS] * CHUNKS)))
    body: Json = {"model": "local/flood", "input": "x", "stream": True, "store": False}
    before = memory(stack)
    with Leaver(stack, body, buffer=32_768) as client:
        assert stalled(upstream, 1) < 0.75 * CHUNKS
        assert memory(stack) - before < 24  # of the 32 that the whole answer has
        assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"
        answer = client.read_all()
    assert answer.count(b"event: response.output_text.delta\n") == CHUNKS
    assert answer.count(b"event: response.completed\n") == 1
    assert answer.index(b"data: [DONE]") > answer.index(b"event: response.completed\n")
    assert upstream.requests("flood")[-1].ended == "completed"

    with Leaver(stack, body, buffer=32_768) as client:
        assert stalled(upstream, 2) < 0.75 * CHUNKS
        left = client.leave()
        record = upstream.wait_for("flood", count=2, ended=True)[-1]
    assert record.ended == "client_gone"
    assert (record.ended_at or 0) - left < SOON


HASTY = 400


@pytest.mark.parametrize("kind", UNFINISHED)
def test_clients_that_leave_in_the_middle_of_a_body_hold_up_nobody(
    stack: LiveStack, client: openai.OpenAI, wire: Wire, kind: str
) -> None:
    """Each is a debug line: a traceback of each would take the server minutes."""
    container = client.containers.create(name="left")
    begin = UNFINISHED[kind](container.id, {})
    for _ in range(HASTY):
        leave_after(stack, begin)
    began = time.monotonic()
    assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"
    assert time.monotonic() - began < SOON
    client.containers.delete(container.id)


def test_handshakes_and_messages_that_break_off_hold_up_nobody(stack: LiveStack, wire: Wire) -> None:
    for number in range(HASTY):
        leave_after(stack, handshake({}), HEAD_OF_A_MESSAGE if number % 2 else b"")
    assert wire.create(model="local/echo", input="Still there?")["status"] == "completed"


def test_upload_without_end_is_refused_and_its_connection_closed(stack: LiveStack, client: openai.OpenAI) -> None:
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


FOLLOWED = 3_000  # chunks: 15 megabytes
READERS = 24


def test_readers_that_stall_hold_up_nobody_and_next_to_nothing(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """What they follow is made to its end, and waits for them in the store."""
    upstream.script("followed", reply(text(*[WORDS] * FOLLOWED)))
    before = memory(stack)
    made = wire.post({"model": "local/followed", "input": "x", "background": True}).json()
    path = f"/v1/responses/{made['id']}?stream=true"
    with ExitStack() as open_all:
        readers = [open_all.enter_context(Leaver(stack, None, 32_768, path)) for _ in range(READERS)]
        assert upstream.wait_for("followed", ended=True, seconds=180)[0].ended == "completed"
        wait_until(lambda: wire.retrieve(made["id"])["status"] == "completed", 180)
        assert memory(stack) - before < 120  # of the 360 that all of them are owed
        for reader in (readers[0], readers[-1]):
            assert reader.read_all().count(b"event: response.output_text.delta\n") == FOLLOWED


MANY = 60
FILE = 16 * 2**20


def test_readers_that_stall_on_a_file_cost_a_block_each(stack: LiveStack, client: openai.OpenAI) -> None:
    """Whoever reads on gets the rest, also of a file that is gone by then."""
    container = client.containers.create(name="read slowly")
    file = client.containers.files.create(container.id, file=("large.bin", b"x" * FILE))
    path = f"/v1/containers/{container.id}/files/{file.id}/content"
    before = memory(stack)
    with ExitStack() as open_all:
        readers = [open_all.enter_context(Leaver(stack, None, 32_768, path)) for _ in range(MANY)]
        for reader in readers:
            reader.read_until(b"content-length: %d\r\n" % FILE)
        assert memory(stack) - before < 60  # of the 960 that all of them are owed
        client.containers.delete(container.id)
        readers[-1].read_until(b"x" * FILE)


SAID_LONG = 1_600  # chunks: 8 megabytes


def test_readers_that_stall_on_a_replay_share_the_response(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("long", reply(text(*[WORDS] * SAID_LONG)))
    made = wire.create(model="local/long", input="x")
    path = f"/v1/responses/{made['id']}?stream=true"
    before = memory(stack)
    with ExitStack() as open_all:
        readers = [open_all.enter_context(Leaver(stack, None, 32_768, path)) for _ in range(MANY)]
        for reader in readers:
            reader.read_until(b"event: response.created")
        assert memory(stack) - before < 120  # of the 2,400 that all of them are owed
        answer = readers[-1].read_all()
    assert answer.count(b"event: response.completed\n") == 1
    assert len(answer) > 5 * len(WORDS) * SAID_LONG - 2**20  # the delta, and four events that have all of the text


def stalled(upstream: Upstream, flood: int) -> int:
    """The chunks that the model server has got rid of in this flood, once there are no more for half a second."""
    upstream.wait_for("flood", count=flood)
    sent, unchanged = 0, 0
    while sent == 0 or unchanged < 5:
        time.sleep(0.1)
        now = upstream.requests("flood")[-1].chunks_sent
        unchanged = unchanged + 1 if now == sent else 0
        sent = now
    return sent


def memory(stack: LiveStack) -> float:
    """The megabytes of memory that the stack's process has."""
    [line] = [line for line in Path(f"/proc/{stack.pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
