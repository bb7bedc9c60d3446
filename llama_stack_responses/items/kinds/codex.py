"""Items that Codex keeps in its threads beside those of the API reference, and sends with each request."""

from __future__ import annotations

from typing import Any, Final

from ...core.item_fields import OWN_ID, TEXT
from ...core.shapes import object_of, tagged
from ...core.types import Json
from ..content_parts import ENCRYPTED, ENCRYPTED_PART, INPUT_PARTS, readable
from ..form import ItemType
from ..kind import ItemKind
from ..view import MessageView
from .message import content_of, shown_parts

CONTEXT_COMPACTION: Final = "context_compaction"
"""The type of a mark where Codex compacted a thread. With a summary, it is a `compaction` item."""

_AGENT_PARTS: Final = {**INPUT_PARTS, ENCRYPTED: ENCRYPTED_PART}


def _from_agent(item: Json) -> Json | None:
    """Return a message between agents as the user's message, with the parts that can be read; None without any."""
    texts, others = list[str](), list[Json]()
    for part in item["content"]:
        if part["type"] == ENCRYPTED:
            texts.append(readable(part[ENCRYPTED]) or "")
        elif part["type"] == "input_text":
            texts.append(part["text"])
        else:
            others.append(part)
    text = "".join(texts)
    if not text and not others:
        return None
    head = f"[Message from agent '{item['author']}' to agent '{item['recipient']}']"
    content = [{"type": "input_text", "text": f"{head}\n{text}"}, *others]
    return {**_id_of(item), "type": "message", "role": "user", "content": content}


def _reasoned(item: Json) -> Json:
    return {**_id_of(item), "type": "reasoning", "summary": [{"type": "summary_text", "text": item["text"]}]}


def _id_of(item: Json) -> dict[str, Any]:
    return {"id": item["id"]} if "id" in item else {}


def _unread(_: Json) -> None:
    return None


_AGENT_MESSAGE: Final = object_of(
    {
        "id": OWN_ID,
        "author": TEXT,
        "recipient": TEXT,
        "content": content_of("input_text", tagged(_AGENT_PARTS)),
    },
    "author",
    "recipient",
    "content",
)

_MARK: Final = object_of({"id": OWN_ID})

KINDS: Final = (
    ItemKind(
        ItemType("agent_message", "amsg", has_status=False),
        _AGENT_MESSAGE,
        view=MessageView(shown_parts),
        read=_from_agent,
    ),
    ItemKind(
        ItemType("agent_reasoning", "rs", has_status=False),
        object_of({"id": OWN_ID, "text": TEXT}, "text"),
        read=_reasoned,
    ),
    ItemKind(ItemType(CONTEXT_COMPACTION, "cmp", has_status=False), _MARK, read=_unread),
    # A commit of the working tree, to which Codex can return.
    ItemKind(ItemType("ghost_snapshot", "gs", has_status=False), _MARK, read=_unread),
    # An item that Codex itself did not know.
    ItemKind(ItemType("other", "item", has_status=False), _MARK, read=_unread),
)
