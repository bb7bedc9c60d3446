"""The page's replay of a stream: every event of a transcript changes the response that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.stream.transcript import TYPES
from llama_stack_responses.features import page

REDUCER: Final = (Path(page.__path__[0]) / "static" / "reducer.js").read_text()
STAGE: Final = re.compile(re.findall(r"^const STAGE = /(.*)/;$", REDUCER, re.MULTILINE)[0])
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


@pytest.mark.parametrize("event", sorted({*TYPES} - REPEATED))
def test_event_of_transcript_is_applied_by_page(event: str) -> None:
    assert f'"{event}": ' in REDUCER or STAGE.match(event)
