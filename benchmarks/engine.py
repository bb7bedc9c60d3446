"""A model server that speaks at the pace of an engine: at each step, one token for every running stream.

    python -m benchmarks.engine MILLISECONDS       # prints `listening PORT`

It speaks chat completions, and text as responses too. A model is named after what it says and how many tokens that
takes: `text-200`, `reasoning-200`, `arguments-200`. Every token is a separate write, and consists of the time of that
write, in nanoseconds of the monotonic clock, which all processes of a machine share, and a space. All tokens of
`burst-200`, which is text, are one write at once. An answer that is not streamed is one write too.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import cache
from itertools import count
from typing import Any, Final, cast

import uvloop

from benchmarks.protocols import KINDS, Encoding, chat, filled, responses

type Json = dict[str, Any]

LENGTHS: Final = (3, 20, 32, 100, 180, 200, 512)
"""Numbers of tokens of the listed models. A host takes longer for models that are not listed."""
BURST: Final = "burst"
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_LAST: Final = b"0\r\n\r\n"


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def encoding(model: str, as_responses: bool, function: str | None = None) -> Encoding:
    """Return the answer of a model in one of the protocols; `function` is the tool that it calls."""
    kind, _, length = model.partition("-")
    if as_responses:
        return responses(model, int(length))
    return chat(model, "text" if kind == BURST else kind, int(length), function)


@cache
def burst(model: str, as_responses: bool) -> tuple[bytes, str]:
    """Return the frames of a whole stream, and its text.

    The times of its tokens are those since the first request, one nanosecond each: a text that repeats itself may be
    read with more care.
    """
    encoded, first, tokens = encoding(model, as_responses), time.monotonic_ns(), int(model.partition("-")[2])
    stamps = range(first, first + tokens)
    frames = b"".join(encoded.token % stamp for stamp in stamps)
    return encoded.before + frames + encoded.after, "".join(f"{stamp} " for stamp in stamps)


class Answer:
    """One stream of tokens.

    Args:
        number: of the answer, for its ids.
    """

    def __init__(self, transport: asyncio.Transport, encoded: Encoding, tokens: int, number: int = 0) -> None:
        self.transport = transport
        self.left = tokens
        self._number, self._after = number, encoded.after
        self._said: list[int] = []
        # A stamp has 15 digits or so for as long as the machine is up; its frame has the same size each time.
        token = filled(encoded.token, number, "")
        self._token = b"%x\r\n%b\r\n" % (len(token % time.monotonic_ns()), token)
        transport.write(_STREAM + _piece(filled(encoded.before, number, "")))

    def step(self) -> bool:
        """Write one token; return whether there are more."""
        stamp = time.monotonic_ns()
        self.transport.write(self._token % stamp)
        self._said.append(stamp)
        self.left -= 1
        if not self.left:
            text = "".join(f"{each} " for each in self._said)
            self.transport.write(_piece(filled(self._after, self._number, text)) + _LAST)
        return bool(self.left)


class Engine:
    """All running streams.

    Args:
        pace: seconds between two steps.
    """

    def __init__(self, pace: float) -> None:
        self.numbers = count(1)
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
            path = head.partition(b" ")[2].partition(b" ")[0]
            lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            size = int(lengths[0]) if lengths else 0
            if len(rest) < size:
                return
            body, self._received = rest[:size], rest[size:]
            self._answer(path.endswith(b"/responses"), body)

    def _answer(self, as_responses: bool, body: bytes) -> None:
        if not body:
            models = [{"id": f"{kind}-{length}", "object": "model"} for kind in (*KINDS, BURST) for length in LENGTHS]
            listed = json.dumps({"object": "list", "data": models}).encode()
            self._transport.write(_WHOLE % (len(listed), listed))
            return
        request = json.loads(body)
        model, tools = request["model"], request.get("tools") or ()
        kind, _, length = model.partition("-")
        tokens = int(length)
        function = tools[0]["function"]["name"] if tools else None
        encoded, number = encoding(model, as_responses, function), next(self._engine.numbers)
        if not request.get("stream"):
            whole = filled(encoded.whole, number, f"{time.monotonic_ns()} " * tokens)
            self._transport.write(_WHOLE % (len(whole), whole))
        elif kind == BURST:
            frames, text = burst(model, as_responses)
            self._transport.write(_STREAM + _piece(filled(frames, number, text)) + _LAST)
        else:
            self._engine.begin(Answer(self._transport, encoded, tokens, number))


async def _serve(pace: float) -> None:
    engine = Engine(pace)
    server = await asyncio.get_running_loop().create_server(lambda: Server(engine), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"listening {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]) / 1000))
