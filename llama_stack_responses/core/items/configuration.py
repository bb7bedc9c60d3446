"""The item that changes settings of the responses after it."""

from __future__ import annotations

from typing import Final

from .form import ItemType
from .kind import ItemKind

CONFIGURATION: Final = "configuration_update"
"""The type of the item."""

KINDS: Final = (ItemKind(ItemType(CONFIGURATION, "cfg", has_status=False)),)
