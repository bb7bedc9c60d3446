"""A streamed delta costs no more than it did: in steps, which are the same on every machine."""

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
"""Past this, find out why; if it is worth it: `python -m benchmarks.steps --record`."""


@pytest.fixture(scope="module")
def found() -> dict[str, Steps]:
    """What each kind of delta takes now."""
    return {kind: per_delta(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_takes_no_more_steps_than_it_did(found: dict[str, Steps], kind: str) -> None:
    assert found[kind].steps <= GROWTH * recorded()[kind].steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_asks_no_more_of_libraries_than_it_did(found: dict[str, Steps], kind: str) -> None:
    """One call more may cost more than all steps: another decoder, a model that is validated, a deep copy."""
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
def test_whose_a_call_is(called: Any, name: str | None) -> None:
    assert library_name(called) == name


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_is_a_whole_stream(kind: str) -> None:
    events = read_sse([asyncio.run(stream(KINDS[kind](20)))]).events
    assert sum(event["type"].endswith(".delta") for event in events) == 20
    assert events[-1]["type"] == "response.completed"
