"""The page's replay of a stream: every event of a transcript changes the response that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.features import page
from llama_stack_responses.stream.transcript import SHORT_TYPES
from tests.support.own_types import events_of_kinds

from .kinds_of_page import kinds_of_page

REDUCER: Final = (Path(page.__path__[0]) / "static" / "reducer.js").read_text()
OF_ITEM: Final = re.compile(re.findall(r"^const OF_ITEM = /(.*)/;$", REDUCER, re.MULTILINE)[0])
REPEATED: Final = {
    "response.content_part.done",
    "response.output_text.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.done",
    "response.reasoning_text.done",
    "response.refusal.done",
}
"""Events whose content earlier events, or the first delta, have brought."""


def is_applied_to_item(event: str) -> bool:
    """Whether `applyToItem` of the page changes an item with this event."""
    of_item, kinds = OF_ITEM.fullmatch(event), kinds_of_page()
    if of_item is None:
        return False
    name, what = of_item.groups()
    if what in ("delta", "done"):
        return name in kinds["STREAMED"]
    return name in kinds["KINDS"] and bool(what != "partial_image" or kinds["KINDS"][name]["image"])


@pytest.mark.parametrize("event", sorted({*SHORT_TYPES, *(event["type"] for event in events_of_kinds())} - REPEATED))
def test_event_of_transcript_is_applied_by_page(event: str) -> None:
    assert f'"{event}": ' in REDUCER or is_applied_to_item(event)
