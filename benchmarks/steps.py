"""The number of steps per streamed delta in this project's code, from bytes in to bytes out, and its library calls.

    .venv/bin/python -m benchmarks.steps              # compare with the recorded numbers
    .venv/bin/python -m benchmarks.steps --record     # record the numbers

Times vary between machines and runs, but the steps of a fixed script are the same every time, and hardly depend on the
Python version. A step is an executed line or a call. Steps inside libraries are not counted, since their cost can
differ by a factor of a hundred; calls into libraries are recorded by name instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import batched
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

import llama_stack_openai_chat
import llama_stack_responses
from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.connection import Connection
from llama_stack_openai_chat.pool import Pool
from llama_stack_openai_chat.upstream import Upstream
from llama_stack_responses.admission import Admission
from llama_stack_responses.chat.inference import Extender, ModelServer, Receive
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.factory import GenerationFactory
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.generation.token_counts import TokenCounts
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.inputs.moderation import NoModeration
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.sealing.sealed_items import SealedItems
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.wire.http_responses import RunEventsResponse
from llama_stack_responses.wire.request_cycle import RequestCycle
from tests.support.frames import frames
from tests.support.generations import model_servers
from tests.support.script import Chunk, reasoning, reply, text, tool_call

type Json = dict[str, Any]

RECORDED: Final = Path(__file__).with_name("steps.json")
_PACKAGES: Final = (llama_stack_responses, llama_stack_openai_chat)
OURS: Final = tuple(package.__path__[0] for package in _PACKAGES)
NO_LIBRARIES: Final = {"builtins", "benchmarks", "__main__", *(package.__name__ for package in _PACKAGES)}
TOGETHER: Final = 4
"""Frames per read at full speed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of delta, and how its frames arrive.

    Attributes:
        chunks: returns so many chunks.
        together: frames per read.
    """

    chunks: Callable[[int], list[Chunk]]
    together: int = TOGETHER


_TEXT: Final = Kind(lambda count: text(*["word "] * count))
_REASONING: Final = Kind(lambda count: reasoning(*["word "] * count))
_ARGUMENTS: Final = Kind(lambda count: tool_call(0, "call_1", "f", '{"text": "', *["word "] * count, '"}'))
KINDS: Final = {
    "text": _TEXT,
    "text, one a read": Kind(_TEXT.chunks, 1),
    "reasoning": _REASONING,
    "arguments": _ARGUMENTS,
    "arguments, one a read": Kind(_ARGUMENTS.chunks, 1),
}
FEW: Final = 64
MANY: Final = 576
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A stand-in for a socket: after a write, the answer arrives in pieces, one per iteration of the loop."""

    def __init__(self, connection: Connection, pieces: list[bytes]) -> None:
        super().__init__()
        self._connection = connection
        self._pieces = iter(pieces)

    def write(self, _: bytes | bytearray | memoryview) -> None:
        """Start the answer."""
        self._next()

    def abort(self) -> None:
        """Drop the rest of the answer."""
        self._pieces = iter(())

    def _next(self) -> None:
        if piece := next(self._pieces, None):
            self._connection.data_received(piece)
            asyncio.get_running_loop().call_soon(self._next)


class Wired(Pool):
    """A pool that connects to canned bytes instead of a server."""

    def __init__(self, config: OpenAIChatConfig, pieces: list[bytes]) -> None:
        super().__init__(config)
        self._pieces = pieces

    async def connect(self) -> Connection:
        """Return a connection that receives these bytes."""
        connection = Connection(60)
        connection.connection_made(Wire(connection, self._pieces))
        return connection


class Client(asyncio.Transport):
    """A stand-in for uvicorn's connection to a client, and for its state of the request; it keeps the body."""

    disconnected = response_complete = False
    response_started = chunked_encoding = True
    user_middleware = ()

    def __init__(self) -> None:
        super().__init__()
        self.body: list[bytes] = []
        self.transport = self
        self.flow = SimpleNamespace(write_paused=False)

    def is_closing(self) -> bool:
        """Return False: the client stays."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep a chunk of the body."""
        self.body.append(bytes(data).partition(b"\r\n")[2][:-2])

    async def send(self, message: Any) -> None:
        """Keep the body of a message."""
        self.body.append(message.get("body", b""))

    async def receive(self) -> Json:
        """Wait: the client stays connected."""
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it is never done


class Inference:
    """A stand-in for the host's router."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def open_stream(
        self, _: Json, receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Return the chunks of the answer, which are pushed."""
        chunks = await self._upstream.open_stream("/chat/completions", b"{}", chat_chunk)
        if receive:
            chunks.push_to(receive, extender)
        return chunks

    async def check_model(self, model: str) -> None:
        """Accept any model."""

    async def count_tokens(self, _: Json) -> int | None:
        """Return None: not needed."""
        return None

    async def context_length(self, _: str) -> int | None:
        """Return None: not needed."""
        return None

    async def server_of(self, _: str) -> ModelServer | None:
        """Return None: not needed."""
        return None

    async def health(self, _: float) -> dict[str, bool | None]:
        """Return nothing: not needed."""
        return {}

    def to_api_error(self, error: Exception) -> ApiError:
        """Raise the error: none is expected."""
        raise error


def answer(chunks: list[Chunk], together: int) -> list[bytes]:
    """Return the bytes of a stream, as they arrive."""
    sent = frames(reply(chunks), "m", True)
    return [HEAD + sent.opening, *map(b"".join, batched(sent.chunks, together)), sent.closing + b"0\r\n\r\n"]


async def stream(kind: Kind, count: int) -> bytes:
    """Return all bytes that a client receives for an answer of so many deltas."""
    config = OpenAIChatConfig(base_url="http://localhost/v1")
    tool = {"type": "function", "name": "f", "parameters": {}}
    request = parse_create({"model": "m", "input": "Hi", "stream": True, "tools": [tool]})
    limits = GenerationLimits(rounds=1, idle_seconds=60, tool_seconds=60)
    inference = Inference(Upstream(config, Wired(config, answer(kind.chunks(count), kind.together))))
    settings = ResponsesConfig()
    contents = Admission(settings.files.content_quota)
    attachments = open_attachments(NoFiles(), settings, WorkerPool(PoolLimits()), contents, AddressPolicy())
    factory = GenerationFactory(
        inference,
        attachments,
        client_tools(),
        [],
        limits,
        SealedItems(Sealer([bytes(SECRET_BYTES)]), 2**20),
        TokenCounts(inference, []),
        NoModeration(),
        model_servers(inference),
        LargeWork(),
        WorkerPool(PoolLimits()),
    )
    context = factory.context(request, new_response(request, id="resp_1", created_at=1), ANONYMOUS)
    event_buffer = EventBuffer(wanted=True, transcript=Transcript())
    generation = await context.generation(request.input_items, event_buffer)
    run = ForegroundRun(generation, context.assembler, event_buffer, _keep, _drop, 2.0, bool)
    client = Client()
    scope = {"type": "http", "headers": [], "app": client}
    with RequestCycle(
        scope,
        client.receive,
        client.send,
        request_id="req_1",
        unread_seconds=60,
        abort_connection=lambda _: None,
        reserve_answer=lambda: contents.reserve(ANONYMOUS),
    ) as cycle:
        await RunEventsResponse(run)(scope, cycle.receive, cycle.send)
    return b"".join(client.body)


async def _keep(_: Json) -> None:
    return


async def _drop() -> None:
    return


@dataclass(slots=True)
class Steps:
    """The executed lines and calls in this project's code, and the library calls by name."""

    steps: float = 0
    libraries: dict[str, float] = field(default_factory=dict)

    def line(self, code: CodeType, _: int) -> object:
        """Count a line; disable events for code outside this project."""
        if not code.co_filename.startswith(OURS):
            return sys.monitoring.DISABLE
        self.steps += 1
        return None

    def call(self, code: CodeType, place: int, called: object, *_: object) -> object:
        """Count a call in the same way."""
        answer = self.line(code, place)
        if answer is None and (name := library_name(called)):
            self.libraries[name] = self.libraries.get(name, 0) + 1
        return answer


def library_name(called: Any) -> str | None:
    """Return the name of a library's function; None for Python's own or this project's."""
    owner = getattr(called, "__objclass__", None) or type(getattr(called, "__self__", None))
    module = getattr(called, "__module__", None) or owner.__module__
    if module.partition(".")[0] in NO_LIBRARIES:
        return None
    return f"{module}.{getattr(called, '__qualname__', type(called).__qualname__)}"


@contextmanager
def counting() -> Iterator[Steps]:
    """Count in the block."""
    tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
    counted = Steps()
    sys.monitoring.use_tool_id(tool, "steps")
    try:
        sys.monitoring.register_callback(tool, events.LINE, counted.line)
        sys.monitoring.register_callback(tool, events.CALL, counted.call)
        sys.monitoring.set_events(tool, events.LINE | events.CALL)
        yield counted
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)


def steps(kind: Kind, count: int) -> Steps:
    """Count the steps of one stream, after a first one for one-time work."""
    asyncio.run(stream(kind, count))
    with counting() as counted:
        asyncio.run(stream(kind, count))
    return counted


def per_delta(kind: str) -> Steps:
    """Return the steps of one more delta."""
    few, many = (steps(KINDS[kind], count) for count in (FEW, MANY))
    more = {name: (count - few.libraries.get(name, 0)) / (MANY - FEW) for name, count in sorted(many.libraries.items())}
    return Steps((many.steps - few.steps) / (MANY - FEW), {name: each for name, each in more.items() if each > 0})


def recorded() -> dict[str, Steps]:
    """Return the recorded numbers, by kind of delta."""
    return {kind: Steps(**figures) for kind, figures in json.loads(RECORDED.read_text()).items()}


def main() -> None:
    """Measure, and record if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="keep these figures as those to compare with")
    options = parser.parse_args()
    found = {kind: per_delta(kind) for kind in KINDS}
    if options.record:
        RECORDED.write_text(json.dumps({kind: asdict(each) for kind, each in found.items()}, indent=2) + "\n")
    for kind, each in found.items():
        before = recorded().get(kind, each)
        sys.stdout.write(f"{kind:22} {each.steps:7.1f} steps a delta, recorded {before.steps:7.1f}\n")
        for name, count in each.libraries.items():
            sys.stdout.write(f"{'':22} {count:7.3f} {name}, recorded {before.libraries.get(name, 0):7.3f}\n")


if __name__ == "__main__":
    main()
