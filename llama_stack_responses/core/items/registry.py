"""The kinds of items and the types of tools that the features bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..discovery import modules_of_features
from .kind import ItemKind, Kinds, ToolType

_KINDS: Final[Mapping[str, Kinds]] = {feature: module.KINDS for feature, module in modules_of_features("kinds").items()}

ITEM_KINDS: Final[Mapping[str, ItemKind]] = {kind.form.type: kind for kinds in _KINDS.values() for kind in kinds.items}
"""Kinds of items, by the type of the item."""

TOOL_TYPES: Final[Mapping[str, ToolType]] = {tool.type: tool for kinds in _KINDS.values() for tool in kinds.tools}
"""Types of tools, by their name."""
