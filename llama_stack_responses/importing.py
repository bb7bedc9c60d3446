"""Conversations that another server kept, brought into the store once."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .core.conversations import read_metadata
from .core.errors import ApiError
from .core.ids import check_conversation_id
from .core.items import COMPACTION, TRIGGER, check_input
from .core.listing import with_ids
from .core.owner import Owner
from .core.shapes import At, Limits, check_json
from .store.conversations import Conversation, ConversationStore
from .store.records import Conflict

Json = dict[str, Any]

_MEANINGLESS: Final = frozenset({COMPACTION, TRIGGER, "item_reference"})
"""What says nothing here: it is sealed by the other server, a request's own, or leads into its store."""


class CannotImport(Exception):  # noqa: N818 - it is what the command says
    """Why nothing can be imported, in one sentence for the person who asked."""


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation as the other server has it.

    Attributes:
        items: as they are stored there, oldest first, by their ids.
    """

    id: str
    owner: Owner
    created_at: int
    metadata: Mapping[str, str]
    items: Mapping[str, Any]


@dataclass(slots=True)
class Report:
    """What an import did.

    Attributes:
        conversations: how many were written.
        items: how many they have together.
        there: how many conversations were in the store already.
        left_out: the ids of the items and conversations that could not be read.
    """

    conversations: int = 0
    items: int = 0
    there: int = 0
    left_out: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = (
            f"Imported {_count(self.conversations, 'conversation')} with {_count(self.items, 'item')}; "
            f"{self.there} were there already; {len(self.left_out)} could not be read and were left out"
        )
        return f"{said}: {', '.join(self.left_out)}." if self.left_out else f"{said}."


async def import_conversations(store: ConversationStore, found: AsyncIterable[Found], limits: Limits) -> Report:
    """Stores what is found, each conversation in one commit, unless one with its id is there.

    Raises:
        CannotImport: the store is away; what was written until then stays, and the next import goes on behind it.
    """
    report = Report()
    async for each in found:
        try:
            check_conversation_id(each.id, "id")
            metadata = read_metadata({"metadata": dict(each.metadata)}, limits, required=False)
        except ApiError:
            report.left_out.append(each.id)
            continue
        items, unread = _read(each.items, limits)
        try:
            await store.create(Conversation(each.id, each.owner, each.created_at, metadata), items)
        except Conflict:
            report.there += 1
            continue
        except ApiError as error:
            raise CannotImport(str(error)) from error
        report.conversations += 1
        report.items += len(items)
        report.left_out += unread
    return report


def _read(items: Mapping[str, Any], limits: Limits) -> tuple[Sequence[Json], Iterable[str]]:
    """The items in the form in which they are stored, and the ids of those that have none."""
    read: list[Json] = []
    unread: list[str] = []
    for item_id, item in items.items():
        try:
            read.append(_one(item_id, item, limits))
        except ApiError:
            unread.append(item_id)
    return with_ids(read), unread


def _one(item_id: str, value: Any, limits: Limits) -> Json:
    at = At("item", limits)
    check_json(value)
    [item] = check_input([{**value, "id": item_id} if isinstance(value, dict) else value], at)
    if item["type"] in _MEANINGLESS:
        raise ApiError(400, "An item that says nothing here.")
    if item["type"] == "reasoning":
        # Sealed by the other server, if at all: nobody opens that here.
        item.pop("encrypted_content", None)
    return item


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
