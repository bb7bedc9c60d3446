"""A model server that speaks at the pace of an engine: at each step, one token for every running stream.

    python -m benchmarks.engine MILLISECONDS       # prints `listening PORT`

A model is named after what it says and how many tokens that takes: `text-200`, `reasoning-200`, `arguments-200`. Every
token is a separate write, and consists of the time of that write, in nanoseconds of the monotonic clock, which all
processes of a machine share, and a space.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final, cast

import uvloop

type Json = dict[str, Any]

KINDS: Final[dict[str, Callable[[str], Json]]] = {
    "text": lambda said: {"content": said},
    "reasoning": lambda said: {"reasoning_content": said},
    "arguments": lambda said: {"tool_calls": [{"index": 0, "function": {"arguments": said}}]},
}
LENGTHS: Final = (3, 20, 100, 180, 200)
"""Numbers of tokens of the listed models. A host takes longer for models that are not listed."""
_FINISH: Final = {"arguments": "tool_calls"}
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(model: str, **fields: Any) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, **fields}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def _choice(delta: Json, reason: str | None = None) -> list[Json]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]


class Answer:
    """One stream: its frames before, for and after its tokens."""

    def __init__(self, transport: asyncio.Transport, model: str, function: str | None) -> None:
        self.transport = transport
        kind, _, count = model.partition("-")
        self.left = int(count)
        opening: Json = {"role": "assistant"}
        if kind == "arguments":
            opening["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": function}}]
        # A stamp has 15 digits or so for as long as the machine is up; its frame has the same size each time.
        width = len(str(time.monotonic_ns()))
        frame = _frame(model, choices=_choice(KINDS[kind]("#" * width + " ")))
        self._before, self._after = (part.replace(b"%", b"%%") for part in _piece(frame).split(b"#" * width))
        self._token = self._before + b"%d" + self._after
        usage = {"prompt_tokens": 1, "completion_tokens": self.left, "total_tokens": self.left + 1}
        ended = _frame(model, choices=_choice({}, _FINISH.get(kind, "stop"))) + _frame(model, choices=[], usage=usage)
        self._closing = _piece(ended + b"data: [DONE]\n\n") + b"0\r\n\r\n"
        transport.write(_HEAD + _piece(_frame(model, choices=_choice(opening))))

    def step(self) -> bool:
        """Write one token; return whether there are more."""
        self.transport.write(self._token % time.monotonic_ns())
        self.left -= 1
        if not self.left:
            self.transport.write(self._closing)
        return bool(self.left)


class Engine:
    """All running streams.

    Args:
        pace: seconds between two steps.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._answers: list[Answer] = []
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self._loop.call_soon(self._step)

    def begin(self, answer: Answer) -> None:
        """Take part in the steps from the next one on."""
        self._answers.append(answer)

    def _step(self) -> None:
        self._answers = [each for each in self._answers if not each.transport.is_closing() and each.step()]
        self._due = max(self._due + self._pace, self._loop.time())
        self._loop.call_at(self._due, self._step)


class Server(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer complete requests."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, rest = self._received.partition(b"\r\n\r\n")
            lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            size = int(lengths[0]) if lengths else 0
            if len(rest) < size:
                return
            body, self._received = rest[:size], rest[size:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if not body:
            models = [{"id": f"{kind}-{length}", "object": "model"} for kind in KINDS for length in LENGTHS]
            listed = json.dumps({"object": "list", "data": models})
            head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
            self._transport.write(f"{head}{len(listed)}\r\n\r\n{listed}".encode())
            return
        request = json.loads(body)
        tools = request.get("tools") or ()
        self._engine.begin(Answer(self._transport, request["model"], tools[0]["function"]["name"] if tools else None))


async def _serve(pace: float) -> None:
    engine = Engine(pace)
    server = await asyncio.get_running_loop().create_server(lambda: Server(engine), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"listening {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]) / 1000))
