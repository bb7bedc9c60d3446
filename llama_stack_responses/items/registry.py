"""The kinds of items, those of the core and those of the features, and the types of tools that the features bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..core.discovery import modules_of_features
from .kind import ItemKind, Kinds, Reply, ToolType
from .kinds import (
    apply_patch,
    codex,
    compaction,
    computer,
    configuration,
    custom_tool_call,
    function_call,
    local_shell,
    mcp,
    message,
    reasoning,
    shell,
    tool_search,
)

KINDS_OF_FEATURES: Final[Sequence[Kinds]] = [module.KINDS for module in modules_of_features("kinds").values()]
"""What the features of this installation bring."""

CORE_KINDS: Final = (
    *message.KINDS,
    *reasoning.KINDS,
    *function_call.KINDS,
    *custom_tool_call.KINDS,
    *local_shell.KINDS,
    *shell.KINDS,
    *apply_patch.KINDS,
    *computer.KINDS,
    *tool_search.KINDS,
    *mcp.KINDS,
    *compaction.KINDS,
    *configuration.KINDS,
    *codex.KINDS,
)
"""The kinds of items that every installation has."""

ITEM_KINDS: Final[Mapping[str, ItemKind]] = {
    kind.form.type: kind for kinds in (CORE_KINDS, *(each.items for each in KINDS_OF_FEATURES)) for kind in kinds
}
"""Kinds of items, by the type of the item."""

TOOL_TYPES: Final[Mapping[str, ToolType]] = {tool.type: tool for kinds in KINDS_OF_FEATURES for tool in kinds.tools}
"""Types of tools that features bring, by their name."""

HOSTED_TOOL_NAMES: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            "web_search",
            "file_search",
            "code_interpreter",
            "shell",
            "mcp",
            "image_generation",
            "programmatic_tool_calling",
            *TOOL_TYPES,
        )
    },
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
}
"""Types of tools that a server runs for a request, by their names in a request: those of OpenAI, which gave several
names to some, whether this installation has them or not, and those that only features have."""

REPLIES: Final[Mapping[str, Reply]] = {name: kind.reply for name, kind in ITEM_KINDS.items() if kind.reply}
"""How items reply to earlier ones, by the type of the reply."""

REQUESTS: Final[Mapping[str, tuple[str, Reply]]] = {
    reply.to: (name, reply) for name, reply in REPLIES.items() if reply.waits_for
}
"""The type of the reply of a client, and how it replies, by the type of the item that waits for it."""

ANSWERED: Final[Mapping[str, str]] = {name: reply.to for name, reply in REPLIES.items() if reply.waits_for == "client"}
"""Item types of the calls that the client runs, by the type of their outputs."""

ANSWERS: Final[Mapping[str, str]] = {call: output for output, call in ANSWERED.items()}
"""Item types of outputs, by the type of the client-run call that they answer."""

JOINABLE: Final = frozenset(name for name, kind in ITEM_KINDS.items() if kind.joinable)
"""Item types of outputs that may lack their `call_id` where the limits of the request do not require it."""
