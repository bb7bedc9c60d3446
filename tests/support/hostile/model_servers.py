"""A model server that never stops."""

import json
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any, Final

from tests.support.web import Answer
from tests.support.wire import Json, events_of, final

from .attacker import MODELS, Attacker, Attacks, refused

ATTACKS: Final = Attacks()
EVENTS: Final = {"content-type": "text/event-stream"}
TOOL: Final[Json] = {"type": "function", "name": "f", "parameters": {}}
PIECE: Final = "x" * 10_000


def chunk(**delta: Any) -> bytes:
    """Return an event with this delta."""
    made = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %b\n\n" % json.dumps({**made, "choices": [{"index": 0, "delta": delta}]}).encode()


def arguments(piece: str, **more: Any) -> bytes:
    """Return an event with a fragment of the first call's arguments."""
    return chunk(tool_calls=[{"index": 0, **more, "function": {"name": "f", "arguments": piece}}])


SAID: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "text": (b"", chunk(content=PIECE)),
    "words": (b"", chunk(content="x ") * 1_000),
    "reasoning": (b"", chunk(reasoning_content=PIECE)),
    "refusal": (b"", chunk(refusal=PIECE)),
    "arguments": (arguments("", id="c1", type="function"), arguments(PIECE)),
    "calls": (b"", b"".join(arguments("{}", id=f"c{n}", type="function") for n in range(200))),
}
"""The beginning and the repeated part of endless output, by its kind."""


@ATTACKS.add(**SAID)
def model_that_says_something_without_end(at: Attacker, case: tuple[bytes, bytes]) -> None:
    begin, more = case
    serve(at, lambda: Answer(chain([begin], repeat(more)), 200, EVENTS))
    body = {"model": "hostile/m", "input": "x", "tools": [TOOL], "stream": True}
    with at.wire.http.stream("POST", "/responses", json=body) as answer:
        assert final(events_of(answer))["status"] == "incomplete"


@ATTACKS.add(
    line=b"x" * 100_000,
    lines=b"data: x\n" * 10_000,
    comments=b": x\n\n" * 10_000,
    empty=b"\n" * 100_000,
    chunks=chunk() * 1_000,
)
def model_that_says_nothing_without_end(at: Attacker, case: bytes) -> None:
    serve(at, lambda: Answer(repeat(case), 200, EVENTS))
    refused(at.wire.post({"model": "hostile/m", "input": "x"}), 502, 504)


@ATTACKS.add(
    whole=Answer(repeat(b"[" * 100_000), 200, {"content-type": "application/json"}),
    refusal=Answer(repeat(b"[" * 100_000), 400, {"content-type": "application/json"}),
    deep=Answer(b'{"choices": ' + b"[" * 100_000, 200, {"content-type": "application/json"}),
    head=Answer(b"", 200, {"x-long": "x" * 1_000_000}),
)
def model_server_with_an_odd_answer(at: Attacker, case: Answer) -> None:
    serve(at, lambda: case)
    for model in ("m", "unstreamed-m"):
        refused(at.wire.post({"model": f"hostile/{model}", "input": "x"}), 400, 502, 504)


def serve(at: Attacker, answer: Any) -> None:
    """Let the model server give this answer from now on."""
    at.web.answers[f"{MODELS}/chat/completions"] = lambda _: answer()
