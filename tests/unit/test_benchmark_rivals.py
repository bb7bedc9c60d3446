"""The comparison with other servers: what its model server sends, which streams survive, and its table."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from benchmarks.engine import burst, encoding
from benchmarks.protocols import filled
from benchmarks.rivals import loads
from benchmarks.rivals.kills import TOKENS, Reader
from benchmarks.rivals.report import table
from benchmarks.rivals.servers import RIVALS

type Json = dict[str, Any]


def events(data: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]


def test_model_server_streams_a_response_that_agrees_with_its_tokens() -> None:
    frames, text = burst("burst-3", True)
    sent = events(filled(frames, 7, text))
    kinds: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for each in sent:
        kinds.validate_python(each)
    said = "".join(each["delta"] for each in sent if each["type"] == "response.output_text.delta")
    assert said.count(" ") == 3
    ended = sent[-1]["response"]
    assert ended["output"][0]["content"][0]["text"] == said
    assert {each["response"]["id"] for each in sent if "response" in each} == {"resp_7"}


def test_model_server_answers_whole_with_a_number_of_its_own() -> None:
    answer = json.loads(filled(encoding("burst-3", True).whole, 8, "1 2 3 "))
    assert Response.model_validate(answer).output_text == "1 2 3 "
    assert answer["id"] == "resp_8"


def reader_of(*texts: str, final: str | None) -> Reader:
    """Return a reader that got an item for each of these texts, at the same place, and a final text."""
    reader = Reader("m")
    for text in texts:
        reader.note({"type": "response.output_item.added", "output_index": 0, "sequence_number": 1})
        reader.note({"type": "response.output_text.delta", "output_index": 0, "delta": text, "sequence_number": 2})
    if final is not None:
        output = [{"type": "message", "content": [{"type": "output_text", "text": final}]}]
        reader.note({"type": "response.completed", "response": {"id": "resp_1", "output": output}})
    return reader


WHOLE = "1 " * TOKENS


@pytest.mark.parametrize(
    ("reader", "survived"),
    [
        (reader_of(WHOLE, final=WHOLE), True),
        (reader_of("1 ", WHOLE, final=WHOLE), True),
        (reader_of(WHOLE, final=None), False),
        (reader_of("1 " * (TOKENS - 1), final="1 " * (TOKENS - 1)), False),
        (reader_of("2 " * TOKENS, final=WHOLE), False),
    ],
    ids=["whole", "begun again", "without an end", "a token is missing", "another text"],
)
def test_stream_survives_if_the_reader_has_all_tokens_of_the_response(reader: Reader, survived: bool) -> None:
    assert reader.survived() is survived


def test_table_has_median_of_ratios_and_says_what_is_missing() -> None:
    def rival(title: str, costs: list[float], **others: Any) -> Json:
        rounds = [{loads.STORED: cost} for cost in costs]
        return {"title": title, "version": "1", "store": "SQLite", "rounds": rounds, **others}

    servers = {
        "ours": rival("ours", [0.002, 0.004, 0.004], survived="8 of 8"),
        "other": rival("other", [0.001, 0.008, 0.001]),
        "absent": rival("absent", [], error="not installed: no such package"),
    }
    shown = table({"at": "today", "load": [1.0, 2.0], "servers": servers})
    assert f"| {loads.STORED} | 4.00 ms | 1.00 ms (0.50) |" in shown
    assert "| streams that survive `kill -9` | 8 of 8 |  |" in shown
    assert "- absent 1: not installed: no such package\n" in shown


@pytest.mark.parametrize("rival", RIVALS, ids=[each.name for each in RIVALS])
def test_each_server_is_pinned(rival: Any) -> None:
    assert rival.version[0].isdigit()
