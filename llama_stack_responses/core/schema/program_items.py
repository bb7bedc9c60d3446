"""Programs that call tools, and their outputs, as items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..item_fields import ID, OWN_ID, TEXT
from ..program_limits import CODE_CHARACTERS
from ..shapes import Check, object_of, one_of, string

PROGRAMS: Final = "programmatic_tool_calling"
"""The type of the tool with which the model writes programs."""
PROGRAM: Final = "program"
PROGRAM_OUTPUT: Final = "program_output"

PROGRAM_ITEMS: Final[Mapping[str, Check]] = {
    PROGRAM: object_of(
        {"id": OWN_ID, "call_id": ID, "code": string(0, CODE_CHARACTERS), "fingerprint": string(1, 512)},
        "call_id",
        "code",
        "fingerprint",
    ),
    PROGRAM_OUTPUT: object_of(
        {"id": OWN_ID, "call_id": ID, "result": TEXT, "status": one_of("completed", "incomplete")},
        "call_id",
        "result",
        "status",
    ),
}
"""Checks of items, by type."""
