"""The scripted upstream's server: a minimal HTTP/1.1 implementation on asyncio, much cheaper than what it measures.

A stream's frames are encoded when the script arrives, not when it is played. Each connection is a protocol, so the
event loop reports a disconnect immediately, whatever the stream waits for.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

from tests.support.frames import Frames, completion, frames
from tests.support.script import Reply, error, text

LAST_CHUNK = b"0\r\n\r\n"
KEPT_RECORDS = 10_000  # so that a benchmark does not exhaust the memory, unless it needs them all
WRITES_PER_TURN = 16  # frames that a stream may write before it yields to the others


@dataclass(slots=True)
class Request:
    """One HTTP request; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return urlsplit(self.target).path

    def query(self, name: str) -> str | None:
        """Return a parameter of the query."""
        return parse_qs(urlsplit(self.target).query).get(name, [None])[0]


@dataclass(slots=True, eq=False)
class Record:
    """A chat request and the state of its answer; times in seconds of the monotonic clock."""

    body: dict[str, Any]
    headers: dict[str, str]
    started_at: float
    ended: str = "streaming"
    ended_at: float | None = None
    chunks_sent: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    steps: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 0))

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.body.get("model"))

    def end(self, how: str) -> None:
        """Record how it ended; only the first call has an effect."""
        if self.ended_at is None:
            self.ended, self.ended_at = how, time.monotonic()

    def as_json(self) -> dict[str, Any]:
        """Return the form for tests."""
        names = ("body", "headers", "ended", "started_at", "ended_at", "chunks_sent")
        return {name: getattr(self, name) for name in names}


def vector_size(model: str) -> int | None:
    """Return the vector length of a model that counts words: `words-N`, or the one in the documentation."""
    match = re.fullmatch(r"words-(\d+)", model)
    return int(match[1]) if match else {"nomic-embed-text": 768}.get(model)


class Script:
    """The replies of one model: each request takes the next one, and the last one repeats.

    With `by_results`, a request with N outputs of tools takes the one behind the first N, however often it comes.
    """

    def __init__(
        self, model: str, replies: list[Reply], context: int | None = None, *, by_results: bool = False
    ) -> None:
        """Encode every stream once, with and without the usage chunk."""
        self.context, self._by_results = context, by_results
        self._replies = deque(replies)
        self._frames = {id(reply): self._encode(reply, model) for reply in replies}

    def take(self, body: dict[str, Any]) -> tuple[Reply, tuple[Frames, Frames]]:
        """Return the reply for this request, and its frames without and with usage."""
        if self._by_results:
            results = sum(message.get("role") == "tool" for message in body["messages"])
            reply = self._replies[min(results, len(self._replies) - 1)]
        else:
            reply = self._replies.popleft() if len(self._replies) > 1 else self._replies[0]
        return reply, self._frames[id(reply)]

    @staticmethod
    def _encode(reply: Reply, model: str) -> tuple[Frames, Frames]:
        return frames(reply, model, False), frames(reply, model, True)


@lru_cache(maxsize=64)
def unscripted(model: str, prompt: str) -> Script:
    """Return the script of an unscripted model: `echo` repeats the prompt, `fast-N` has N words, others fail."""
    if model == "echo":
        return Script(model, [Reply(chunks=text(*re.findall(r"\S+\s*|\s+", prompt)))])
    if match := re.fullmatch(r"fast-(\d{1,6})", model):
        return Script(model, [Reply(chunks=text(*["word "] * int(match[1])))])
    return Script(model, [error(404, f"The model `{model}` does not exist.", "model_not_found")])


def counted(text: str, size: int) -> list[float]:
    """Count the words of a text, hashed to `size` dimensions."""
    counts = [0.01] * size  # so that no vector has the length zero
    for word in re.findall(r"\w+", text.lower()):
        counts[crc32(word.encode()) % size] += 1.0
    return counts


def tokens(body: dict[str, Any]) -> int:
    """Count the tokens of a chat: its words and punctuation marks, including those of its tools."""
    prompt = json.dumps([body.get("messages"), body.get("tools")], ensure_ascii=False)
    return len(re.findall(r"\w+|[^\w\s\"]", prompt))


def too_long(context: int, found: int) -> Reply:
    """Return vLLM's error for a chat that is too long."""
    message = (
        f"This model's maximum context length is {context} tokens. However, your request has {found} input tokens."
    )
    return error(400, f"{message} Please reduce the length of the input messages.")


def last_user_text(body: dict[str, Any]) -> str:
    """Return the text of the last user message, with its parts joined."""
    contents = [message.get("content") for message in body.get("messages", []) if message.get("role") == "user"]
    last = contents[-1] if contents else ""
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last or [])


class Upstream:
    """The server's scripts, records and open connections; `generation` is the lock for fairness between streams."""

    def __init__(self, kept: int) -> None:
        """Start without scripts and records, of which the last `kept` are kept."""
        self.connections: set[Connection] = set()
        self.records: deque[Record] = deque(maxlen=kept)
        self.generation = asyncio.Lock()
        self._scripts = defaultdict[str, dict[str, Script]](dict)  # by model, and by a text of the requests

    def take(self, body: dict[str, Any]) -> tuple[Reply, tuple[Frames, Frames]]:
        """Return the reply for this chat request."""
        model = str(body.get("model"))
        script = self._script_of(model, body) or unscripted(model, last_user_text(body) if model == "echo" else "")
        if script.context is not None and (found := tokens(body)) > script.context:
            return Script(model, [too_long(script.context, found)]).take(body)
        return script.take(body)

    def _script_of(self, model: str, body: dict[str, Any]) -> Script | None:
        scripts = self._scripts.get(model, {})
        asked = json.dumps(body.get("messages"), ensure_ascii=False) if len(scripts) > 1 else ""
        return next((script for about, script in scripts.items() if about and about in asked), scripts.get(""))

    def script(self, request: Request) -> Any:
        """Handle `{"model", "replies", "context", "by_results", "about"}`: replace a script of the model."""
        body = json.loads(request.body)
        replies, by_results = [Reply(**reply) for reply in body["replies"]], body.get("by_results", False)
        script = Script(body["model"], replies, body.get("context"), by_results=by_results)
        self._scripts[body["model"]][body.get("about", "")] = script
        return {}

    def release(self, request: Request) -> Any:
        """Handle `{"model"}`: release the held streams of this model."""
        model = json.loads(request.body)["model"]
        for record in self.records:
            if record.model == model:
                record.released.set()
        return {}

    def step(self, request: Request) -> Any:
        """Handle `{"model"}`: let each stepped stream of this model send one more chunk."""
        model = json.loads(request.body)["model"]
        for record in self.records:
            if record.model == model:
                record.steps.release()
        return {}

    def requests(self, request: Request) -> Any:
        """Return all records, or those of the query's model or `ended`, oldest first."""
        model, ended = request.query("model"), request.query("ended")
        return [
            record.as_json()
            for record in self.records
            if model in (None, record.model) and ended in (None, record.ended)
        ]

    def reset(self, _: Request) -> Any:
        """Delete scripts and records, and abort open streams."""
        self._scripts.clear()
        self.records.clear()
        for connection in [connection for connection in self.connections if connection.chatting]:
            connection.abort()
        return {}

    def models(self, _: Request) -> Any:
        """Return OpenAI's list of models."""
        names = sorted({"echo", "fast-512", "nomic-embed-text", "words-64", *self._scripts})
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in names],
        }

    def embeddings(self, request: Request) -> Any:
        """Return a vector per text: its length and the request's `dimensions`; for `words-N`, its word counts."""
        body = json.loads(request.body)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        vectors = [[float(len(each)), float(body.get("dimensions") or 0)] for each in texts]
        if size := vector_size(body["model"]):
            vectors = [counted(each, size) for each in texts]
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        return {
            "object": "list",
            "data": data,
            "model": body["model"],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }

    def moderations(self, request: Request) -> Any:
        """Return OpenAI's verdict on a text, flagged if it contains `bad`; the model `away` returns an error."""
        body = json.loads(request.body)
        model = body.get("model") or "words-1"
        if model == "away":
            return 500, {"error": {"message": "scripted error", "type": "server_error"}}
        flagged = "bad" in body["input"]
        found = {
            "flagged": flagged,
            "categories": {"hate": False, "violence": flagged},
            "category_scores": {"hate": 0.125, "violence": 0.75 if flagged else 0.25},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        }
        return {"id": "modr-1", "model": model, "results": [found]}

    def completions(self, request: Request) -> Any:
        """Return the prompt as its own completion."""
        body = json.loads(request.body)
        choice = {"index": 0, "text": body["prompt"], "finish_reason": "stop", "logprobs": None}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        return {**head, "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    def route(self, method: str, path: str) -> Callable[[Request], Any] | None:
        """Return the handler of any route except chats."""
        return {
            ("GET", "/models"): self.models,
            ("GET", "/health"): lambda _: {"status": "ok"},
            ("POST", "/embeddings"): self.embeddings,
            ("POST", "/completions"): self.completions,
            ("POST", "/moderations"): self.moderations,
            ("POST", "/tokenize"): lambda request: {"count": tokens(json.loads(request.body))},
            ("POST", "/_script"): self.script,
            ("POST", "/_release"): self.release,
            ("POST", "/_step"): self.step,
            ("GET", "/_requests"): self.requests,
            ("POST", "/_reset"): self.reset,
        }.get((method, path.removeprefix("/v1")))


class Connection(asyncio.Protocol):
    """One client connection. Requests are served one after another; a disconnect cancels the current one."""

    def __init__(self, upstream: Upstream) -> None:
        """Create a connection; `connection_made` follows."""
        self.chatting = False
        self._upstream = upstream
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._serving: asyncio.Task[None] | None = None
        self._record: Record | None = None
        self._flushed = asyncio.Event()

    # -- callbacks of the event loop ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pause writing whenever the kernel's buffer is full, so that `_flushed` is exact."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._flushed.set()
        self._upstream.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Buffer the data; serve the next complete request if none is being served."""
        self._received += data
        if self._serving is None:
            self._serve_next()

    def eof_received(self) -> None:
        """Treat a half-closed connection as closed."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the disconnect and cancel the current request."""
        self._upstream.connections.discard(self)
        if self._record is not None:
            self._record.end("client_gone")
        if self._serving is not None:
            self._serving.cancel()

    def pause_writing(self) -> None:
        """Note that the kernel's buffer is full."""
        self._flushed.clear()

    def resume_writing(self) -> None:
        """Note that the kernel has taken everything."""
        self._flushed.set()

    def abort(self) -> None:
        """Close at once; `connection_lost` follows."""
        self._transport.abort()

    # -- requests ------------------------------------------------------------

    def _serve_next(self) -> None:
        request = self._parse()
        if request is not None:
            self._serving = asyncio.ensure_future(self._serve(request))
            self._serving.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving = self._record = None
        self.chatting = False
        if task.cancelled():
            return
        if task.exception() is not None:
            print(f"upstream: {task.exception()!r}", file=sys.stderr, flush=True)
            self.abort()
        elif self._received and not self._transport.is_closing():
            self._serve_next()

    def _parse(self) -> Request | None:
        """Take the next request from the buffer, if it is complete."""
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        first, *lines = self._received[:head_end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body_end = head_end + 4 + int(headers.get("content-length", 0))
        if len(self._received) < body_end:
            return None
        body = bytes(self._received[head_end + 4 : body_end])
        del self._received[:body_end]
        method, target, _ = first.split(" ")
        return Request(method, target, headers, body)

    async def _serve(self, request: Request) -> None:
        if request.method == "POST" and request.path.removeprefix("/v1") == "/chat/completions":
            await self._chat(request)
        elif (answer := self._upstream.route(request.method, request.path)) is None:
            self._write_json(404, {"error": {"message": f"no route {request.method} {request.path}"}})
        else:
            self._control(answer, request)

    def _control(self, answer: Callable[[Request], Any], request: Request) -> None:
        try:
            answered = answer(request)
            status, body = answered if isinstance(answered, tuple) else (200, answered)
            self._write_json(status, body)
        except (ValueError, TypeError, KeyError, LookupError) as problem:  # an invalid script is an error of the test
            self._write_json(400, {"error": {"message": repr(problem)}})

    # -- chats ---------------------------------------------------------------

    async def _chat(self, request: Request) -> None:
        self.chatting = True
        body = json.loads(request.body)
        record = self._record = Record(body, request.headers, time.monotonic())
        self._upstream.records.append(record)
        reply, encoded = self._upstream.take(body)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.withheld:
            await record.released.wait()
        if reply.plain:
            self._write_json(reply.status, reply.body, reply.headers)
            record.end("failed")
        elif body.get("stream"):
            requested = bool((body.get("stream_options") or {}).get("include_usage"))
            await self._stream(reply, encoded[requested], record)
        else:
            await self._complete(reply, record)

    async def _stream(self, reply: Reply, encoded: Frames, record: Record) -> None:
        self._write(
            _head(reply.status, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **reply.headers})
            + encoded.opening
        )
        for index, frame in enumerate(encoded.chunks):
            if index == reply.hold:
                await record.released.wait()
            if reply.stepped is not None and index >= reply.stepped:
                await record.steps.acquire()
            if reply.interval and index:
                await asyncio.sleep(reply.interval)
            self._write(frame)
            record.chunks_sent = index + 1
            if not self._flushed.is_set() or index % WRITES_PER_TURN == WRITES_PER_TURN - 1:
                await self._turn()
        if reply.hold == len(encoded.chunks):
            await record.released.wait()
        await self._end(reply, encoded.closing, record)

    async def _end(self, reply: Reply, closing: bytes, record: Record) -> None:
        if reply.end == "hang":
            await asyncio.Event().wait()
        if reply.end != "drop":
            self._write(closing + LAST_CHUNK)
        await self._flushed.wait()
        record.end("completed" if reply.end in ("done", "no_finish") else "failed")
        if reply.end == "drop":
            self._transport.close()

    async def _complete(self, reply: Reply, record: Record) -> None:
        """Answer a request without streaming, after the time that the stream would have taken."""
        await asyncio.sleep(reply.interval * max(len(reply.chunks) - 1, 0))
        if reply.hold is not None:
            await record.released.wait()
        if reply.end == "hang":
            await asyncio.Event().wait()
        if reply.end == "drop":
            record.end("failed")
            self._transport.close()
            return
        if reply.end == "error_frame":
            self._write_json(500, reply.body or {"error": {"message": "scripted error", "type": "server_error"}})
            record.end("failed")
            return
        self._write_json(reply.status, completion(reply, record.model), reply.headers)
        record.chunks_sent = len(reply.chunks)
        await self._flushed.wait()
        record.end("completed")

    async def _turn(self) -> None:
        """Yield to the other streams, and wait until the client has read what was sent."""
        # One stream per iteration of the event loop, so that a new stream need not wait for all saturated ones.
        async with self._upstream.generation:
            await asyncio.sleep(0)
        await self._flushed.wait()

    def _write_json(self, status: int, body: Any, headers: Any = None) -> None:
        encoded = json.dumps(body).encode()
        described = {"content-type": "application/json", "content-length": str(len(encoded)), **(headers or {})}
        self._write(_head(status, described) + encoded)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)


def _head(status: int, headers: dict[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # non-standard codes such as 529
        phrase = "Scripted"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def serve(port: int, kept: int) -> None:
    """Listen on 127.0.0.1 until SIGTERM or SIGINT; print the address when ready."""
    loop = asyncio.get_running_loop()
    upstream, ended = Upstream(kept), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(lambda: Connection(upstream), "127.0.0.1", port, backlog=1024)
    print(f"listening http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()
    server.close()
    for connection in list(upstream.connections):
        connection.abort()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description="a scripted OpenAI-compatible upstream")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--kept", type=int, default=KEPT_RECORDS, help="requests that are recorded at most")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.kept))
