"""Answers whose connection ends: which are whole, and which are cut. Each as HTTP/1.1 and HTTP/1.0 have it."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import create, function, stream
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.variants import add_host_provider, variant

pytestmark = pytest.mark.live


def frame(delta: Any, finish: str | None = None) -> bytes:
    """Return an event of a chat stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode()


def in_chunks(*pieces: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    """Return the body of a chunked answer."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + last


SAID: Final = frame({"content": "Hello"})
MORE: Final = frame({"content": " there"})
STOP: Final = frame({}, "stop")
DONE: Final = b"data: [DONE]\n\n"
CALL: Final = frame({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}]})
HEADS: Final = {"HTTP/1.1": b"HTTP/1.1 200 OK\r\nconnection: close\r\n", "HTTP/1.0": b"HTTP/1.0 200 OK\r\n"}
KIND: Final = b"content-type: text/event-stream\r\n"
CHUNKED: Final = HEADS["HTTP/1.1"] + KIND + b"transfer-encoding: chunked\r\n\r\n"
SIZED: Final = {name: head + KIND + b"content-length: %d\r\n\r\n" for name, head in HEADS.items()}
OPEN: Final = {name: head + KIND + b"\r\n" for name, head in HEADS.items()}

CUT: Final[dict[str, bytes]] = {
    "chunks": CHUNKED + in_chunks(SAID, MORE, last=b""),
    "half-a-chunk": CHUNKED + in_chunks(SAID, last=b"40\r\ndata: {"),
    "half-an-event": CHUNKED + in_chunks(SAID, MORE[:20]),
    "call-in-chunks": CHUNKED + in_chunks(CALL, last=b""),
    **{f"length-{name[5:]}": head % 999 + SAID + MORE for name, head in SIZED.items()},
    **{f"connection-{name[5:]}": head + SAID + MORE for name, head in OPEN.items()},
    **{f"half-event-{name[5:]}": head + SAID + MORE[:20] for name, head in OPEN.items()},
    "call-1.0": OPEN["HTTP/1.0"] + CALL,
}
WHOLE: Final[dict[str, bytes]] = {
    "ended-chunks": CHUNKED + in_chunks(SAID, MORE),
    "chunks-behind-the-reason": CHUNKED + in_chunks(SAID, MORE, STOP, last=b""),
    **{f"sized-{name[5:]}": head % len(SAID + MORE) + SAID + MORE for name, head in SIZED.items()},
    **{f"reason-{name[5:]}": head + SAID + MORE + STOP for name, head in OPEN.items()},
    **{f"done-{name[5:]}": head + SAID + MORE + DONE for name, head in OPEN.items()},
    "reason-and-half-an-event": OPEN["HTTP/1.0"] + SAID + MORE + STOP + b'data: {"usage"',
}


class Handler(socketserver.StreamRequestHandler):
    """Answers a chat request with the bytes that its model names, and closes the connection."""

    def handle(self) -> None:
        """Answer one request."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := self.rfile.readline()):
                return
            head += line
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        body = self.rfile.read(int(fields.get(b"content-length", b"0")))
        if b"/chat/completions" not in head.split(b"\r\n")[0]:
            self.wfile.write(HEADS["HTTP/1.1"] + b'content-type: application/json\r\n\r\n{"object":"list","data":[]}')
            return
        self.wfile.write((CUT | WHOLE)[json.loads(body)["model"]])


@pytest.fixture(scope="module")
def client(host: Host, stack_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a stack whose model server is the handler above."""
    folder: Path = tmp_path_factory.mktemp("cut")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        env = {**stack_env, "INFERENCE_URL": f"http://127.0.0.1:{server.server_address[1]}/v1"}
        config = variant(STARTER, folder / "config.yaml", add_host_provider)
        with LiveStack(config, env, folder / "state", host=host) as live, live.client() as client:
            yield client
        server.shutdown()


@pytest.mark.parametrize("form", CUT)
def test_cut_answer_is_never_completed(client: openai.OpenAI, provider: str, form: str) -> None:
    response = stream(client, model=f"{provider}/{form}", input="Hi", tools=[function("f")]).response
    assert response["status"] == "failed"
    assert "connection to the inference provider failed" in response["error"]["message"]


@pytest.mark.parametrize("form", WHOLE)
def test_whole_answer_is_completed_however_its_connection_ends(client: openai.OpenAI, provider: str, form: str) -> None:
    for response in (
        stream(client, model=f"{provider}/{form}", input="Hi").response,
        create(client, model=f"{provider}/{form}", input="Hi"),
    ):
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == "Hello there"
