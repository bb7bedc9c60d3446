"""The item that replaces the conversation before it by a summary."""

from __future__ import annotations

from typing import Final

from ...core.item_fields import OWN_ID
from ...core.shapes import data, object_of
from ..form import ItemForm, stage_events
from ..kind import ItemKind
from ..view import SummaryView

COMPACTION: Final = "compaction"
"""The type of the item."""

FORM: Final = ItemForm(
    COMPACTION,
    "cmp",
    stages=stage_events(COMPACTION, "compacting"),
    results={"encrypted_content": ""},
    has_status=False,
)

KINDS: Final = (
    ItemKind(
        FORM,
        object_of({"id": OWN_ID, "encrypted_content": data}, "encrypted_content"),
        view=SummaryView("The conversation before this was replaced by a summary."),
    ),
)
