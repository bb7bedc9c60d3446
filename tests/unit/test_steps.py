"""A streamed delta costs no more than it did: in steps, which are the same on every machine."""

import asyncio

import pytest

from benchmarks.steps import KINDS, per_delta, recorded, stream
from tests.support.sse import read_sse

GROWTH = 1.1
"""Past this, find out why; if it is worth it: `python -m benchmarks.steps --record`."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_takes_no_more_steps_than_it_did(kind: str) -> None:
    assert per_delta(kind) <= GROWTH * recorded()[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_is_a_whole_stream(kind: str) -> None:
    events = read_sse([asyncio.run(stream(KINDS[kind](20)))]).events
    assert sum(event["type"].endswith(".delta") for event in events) == 20
    assert events[-1]["type"] == "response.completed"
