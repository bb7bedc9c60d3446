"""A model server that never stops, or whose chunks are costly to read."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final

from tests.support.web import Answer
from tests.support.wire import Json, checked, events_of, final

from .attacker import MODELS, Attacker, Attacks, refused

ATTACKS: Final = Attacks()
EVENTS: Final = {"content-type": "text/event-stream"}
TOOL: Final[Json] = {"type": "function", "name": "f", "parameters": {}}
PIECE: Final = "x" * 10_000
OUTPUT_BYTES: Final = 4 * 2**20
"""The limit on the output of one response of the attacked stack."""

CALLED: Final = json.dumps({"x": "x" * 2_000})
"""Arguments of a call. Short ones would reach the limit too, after some minutes."""


def chunk(**delta: Any) -> bytes:
    """Return an event with this delta."""
    fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %b\n\n" % json.dumps({**fields, "choices": [{"index": 0, "delta": delta}]}).encode()


def arguments(piece: str, **more: Any) -> bytes:
    """Return an event with a fragment of the first call's arguments."""
    return chunk(tool_calls=[{"index": 0, **more, "function": {"name": "f", "arguments": piece}}])


SAID: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "text": (b"", chunk(content=PIECE)),
    "words": (b"", chunk(content="x ") * 1_000),
    "reasoning": (b"", chunk(reasoning_content=PIECE)),
    "refusal": (b"", chunk(refusal=PIECE)),
    "arguments": (arguments("", id="c1", type="function"), arguments(PIECE)),
    "calls": (b"", b"".join(arguments(CALLED, id=f"c{n}", type="function") for n in range(200))),
}
"""The beginning and the repeated part of endless output, by its kind."""


@ATTACKS.add(**SAID)
def model_that_says_something_without_end(at: Attacker, case: tuple[bytes, bytes]) -> None:
    begin, more = case
    serve(at, lambda: Answer(chain([begin], repeat(more)), 200, EVENTS))
    body = {"model": "hostile/m", "input": "x", "tools": [TOOL], "stream": True}
    with at.wire.http.stream("POST", "/responses", json=body) as answer:
        response = final(events_of(answer))
    assert response["status"] == "incomplete"
    assert len(json.dumps(response["output"])) < 3 * OUTPUT_BYTES


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


CUSTOM: Final[Json] = {"type": "custom", "name": "c"}
END: Final = b"data: [DONE]\n\n"
PAGE: Final = 100
"""The most responses of one list."""
LARGE: Final[Mapping[str, list[bytes]]] = {
    "brackets": [
        *[chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{" * 900_000}}])] * 4,
        *[chunk(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "f", "arguments": "{}"}}])] * 4,
    ],
    "escapes": [
        chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "c", "arguments": f'{{"input":"{escape}'}}])
        for escape in ("\\x" * 400_000, "\\n" * 400_000, "\\ud83d\\ude00" * 60_000)
    ],
    "values": [b'data: {"choices": [], "x": [%b[]]}\n\n' % (b"[]," * 5_000_000)],
    "usage": [b'data: {"choices": [], "usage": {"prompt_tokens": "x", "completion_tokens": [1]}}\n\n'],
}
"""Chunks that are costly to read."""


@ATTACKS.add(**LARGE)
def chunks_that_are_costly_to_read(at: Attacker, case: list[bytes]) -> None:
    serve(at, lambda: Answer([*case, chunk(content="x"), END], 200, EVENTS))
    body = {"model": "hostile/m", "input": "x", "tools": [TOOL, CUSTOM], "stream": True}
    with at.wire.http.stream("POST", "/responses", json=body) as answer:
        if answer.status_code != 200:
            answer.read()
            refused(answer, 502)
        else:
            assert final(events_of(answer))["status"] in ("completed", "incomplete", "failed")


WHOLE: Final[Json] = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "service_tier": "default",
    "choices": [
        {
            "index": 0,
            "delta": {
                "role": "assistant",
                "content": "x",
                "refusal": None,
                "reasoning_content": "y",
                "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t", "end_index": 1}}],
                "tool_calls": [
                    {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            "finish_reason": "tool_calls",
            "logprobs": {"content": [{"token": "x", "logprob": -0.1, "bytes": [1], "top_logprobs": []}]},
        }
    ],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
ODD: Final[Mapping[str, str]] = {
    "null": "null",
    "negative": "-1",
    "fraction": "0.5",
    "huge": "1" + "0" * 400,
    "infinite": "1e999",
    "nan": "NaN",
    "true": "true",
    "empty": '""',
    "nul": '"\\u0000"',
    "half": '"\\ud800"',
    "long": f'"{"x" * 20_000}"',
    "array": "[]",
    "arrays": "[[], {}, null, 1]",
    "object": "{}",
    "nested": '{"x": {"y": []}}',
}


def replaced(value: Any) -> Iterator[Any]:
    """Yield the value with each part of it replaced by the text `@`, one after another."""
    yield "@"
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        for each in replaced(part):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[name] = each
            yield copy


@ATTACKS.add(**ODD)
def chunks_with_a_value_of_another_type(at: Attacker, case: str) -> None:
    ended: dict[str, Json] = {}
    for created in replaced(WHOLE):
        event = f"data: {json.dumps(created).replace(json.dumps('@'), case)}\n\n".encode()
        serve(at, lambda event=event: Answer([chunk(content="a"), event, END], 200, EVENTS))
        body = {
            "model": "hostile/m",
            "input": "x",
            "tools": [TOOL],
            "stream": True,
            "include": ["message.output_text.logprobs"],
        }
        with at.wire.http.stream("POST", "/responses", json=body) as answer:
            assert answer.status_code == 200, (created, answer.read())
            last = final(events_of(answer))
        assert last["status"] in ("completed", "incomplete", "failed"), created
        ended[last["id"]] = last
    assert 1 < len(ended) <= PAGE
    assert {each["id"]: each for each in at.wire.listed(limit=len(ended))} == ended


@ATTACKS.add()
def calls_of_one_chunk(at: Attacker) -> None:
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(1_000)]
    serve(at, lambda: Answer([chunk(tool_calls=calls), END], 200, EVENTS))
    response = checked(at.wire.post({"model": "hostile/m", "input": "x", "tools": [TOOL]}))
    assert response["status"] == "incomplete"
    assert len(response["output"]) <= 256


def serve(at: Attacker, answer: Any) -> None:
    """Let the model server give this answer from now on."""
    at.web.answers[f"{MODELS}/chat/completions"] = lambda _: answer()
