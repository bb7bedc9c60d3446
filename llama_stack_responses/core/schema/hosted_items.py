"""Items of the tools that this server runs, as clients send them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..item_fields import CALL_STATUS, ID, OWN_ID, TEXT
from ..items.registry import ITEM_KINDS
from ..shapes import Check, array, data, object_of, tagged

_PRINTED: Final[Mapping[str, Check]] = {
    "logs": object_of({"logs": TEXT}, "logs"),
    "image": object_of({"url": data}, "url"),
}

HOSTED_ITEMS: Final[Mapping[str, Check]] = {
    "code_interpreter_call": object_of(
        {
            "id": OWN_ID,
            "code": TEXT,
            "container_id": ID,
            "status": CALL_STATUS,
            "outputs": array(tagged(_PRINTED)),
        },
        "container_id",
    ),
    **{name: kind.check for name, kind in ITEM_KINDS.items()},
}
"""Checks of items, by type."""
