"""A streamed delta costs no more steps than recorded; steps are the same on every machine."""

import asyncio
import copy
import json
import re
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletionChunk

from benchmarks.steps import KINDS, Steps, library_name, per_delta, recorded, stream
from tests.support.sse import read_sse

GROWTH = 1.1
"""Beyond this factor, find the cause; if it is worth it: `python -m benchmarks.steps --record`."""


@pytest.fixture(scope="module")
def found() -> dict[str, Steps]:
    """Return the current steps of each kind of delta."""
    return {kind: per_delta(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_delta_takes_no_more_steps_than_recorded(found: dict[str, Steps], kind: str) -> None:
    assert found[kind].steps <= GROWTH * recorded()[kind].steps


@pytest.mark.parametrize("kind", KINDS)
def test_delta_makes_no_more_library_calls_than_recorded(found: dict[str, Steps], kind: str) -> None:
    """One call more may cost more than all steps: another decoder, a validated model, a deep copy."""
    before = recorded()[kind].libraries
    more = {name: each for name, each in found[kind].libraries.items() if each > GROWTH * before.get(name, 0)}
    assert more == {}


@pytest.mark.parametrize(
    ("called", "name"),
    [
        (orjson.loads, "orjson.loads"),
        (json.loads, "json.loads"),
        (copy.deepcopy, "copy.deepcopy"),
        (ChatCompletionChunk.model_validate, "pydantic.main.BaseModel.model_validate"),
        (re.compile("x").search, "re.Pattern.search"),
        (asyncio.Future.done, "_asyncio.Future.done"),
        (dict.get, None),
        ([].append, None),
        (len, None),
        (read_sse, "tests.support.sse.read_sse"),
        (per_delta, None),
    ],
)
def test_library_name_of_call_is_recognised(called: Any, name: str | None) -> None:
    assert library_name(called) == name


@pytest.mark.parametrize("kind", KINDS)
def test_whole_stream_is_measured(kind: str) -> None:
    events = read_sse([asyncio.run(stream(KINDS[kind], 20))]).events
    frames_of_json = 2 if "arguments" in kind else 0
    assert sum(event["type"].endswith(".delta") for event in events) == 20 + frames_of_json
    assert events[-1]["type"] == "response.completed"
