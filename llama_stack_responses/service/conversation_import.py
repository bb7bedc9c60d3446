"""Import of another server's conversations into the store, and what all imports share."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.errors import ApiError
from ..core.ids import check_conversation_id
from ..core.owner import Owner
from ..core.shapes import Location, RequestLimits, check_json
from ..core.types import Json
from ..items.kinds.compaction import COMPACTION
from ..items.listed_items import with_ids
from ..items.registry import ITEM_KINDS
from ..requests.conversation_bodies import read_metadata
from ..requests.input_items import TRIGGER, check_input
from ..store.conversation_store import Conversation, ConversationStore

_MEANINGLESS: Final = frozenset({COMPACTION, TRIGGER, "item_reference"})
"""Types of items that cannot be imported: sealed by the other server, valid in a request only, or references into the
other server's store."""

_MAX_NAMED: Final = 50
"""Maximum number of ids of skipped objects that the report lists."""

_IMPORTS_PER_LINE: Final = 500
"""Conversations and responses between two lines on the progress."""


class ImportImpossible(Exception):  # noqa: N818 - it is the message that the command prints
    """The reason why the import cannot continue, as a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class FoundConversation:
    """A conversation of the other server.

    Attributes:
        items: its items as the other server stores them, by id, oldest first.
    """

    id: str
    owner: Owner
    created_at: int
    metadata: Mapping[str, str]
    items: Mapping[str, Any]


@dataclass(slots=True)
class ImportReport:
    """The counts of an import.

    Attributes:
        say: called with a line on the progress, every 500 conversations and responses.
        conversations: conversations that were written.
        items: items of these conversations.
        responses: responses that were written.
        there: conversations and responses that were in the store already, or were deleted from it since.
        expired: responses that are older than the retention period.
        unfinished: responses that had not ended.
        left_out: ids of items, conversations and responses that could not be read.
    """

    say: Callable[[str], None]
    conversations: int = 0
    items: int = 0
    responses: int = 0
    there: int = 0
    expired: int = 0
    unfinished: int = 0
    left_out: list[str] = field(default_factory=list)
    _looked_at: int = 0

    def count_read(self, number: int = 1) -> None:
        """Count conversations and responses that were read, and report the progress every 500."""
        before, self._looked_at = self._looked_at, self._looked_at + number
        if before // _IMPORTS_PER_LINE != self._looked_at // _IMPORTS_PER_LINE:
            self.say(
                f"Read {self._looked_at:,}: {self.conversations:,} conversations, {self.responses:,} responses new"
            )

    def __str__(self) -> str:
        text = (
            f"Imported {_count(self.conversations, 'conversation')} with {_count(self.items, 'item')} and "
            f"{_count(self.responses, 'response')}; {self.there} already existed or were deleted; "
            f"{self.expired} are older than 'retention_days'; {self.unfinished} had not ended; "
            f"{len(self.left_out)} could not be read and were left out"
        )
        named = ", ".join(self.left_out[:_MAX_NAMED]) + (", ..." if len(self.left_out) > _MAX_NAMED else "")
        return f"{text}: {named}." if named else f"{text}."


async def import_conversations(
    store: ConversationStore,
    conversations: AsyncIterable[FoundConversation],
    limits: RequestLimits,
    report: ImportReport,
) -> None:
    """Store each conversation in one commit, unless one with its id exists or was imported before.

    Raises:
        ImportImpossible: the store is unavailable. What was written stays, and the next import continues from there.
    """
    async for each in conversations:
        report.count_read()
        try:
            check_conversation_id(each.id, "id")
            metadata = read_metadata({"metadata": dict(each.metadata)}, limits, required=False)
        except ApiError:
            report.left_out.append(each.id)
            continue
        items, unread = read_items(each.items.items(), limits)
        try:
            new = await store.import_conversation(Conversation(each.id, each.owner, each.created_at, metadata), items)
        except ApiError as error:
            raise ImportImpossible(str(error)) from error
        if not new:
            report.there += 1
            continue
        report.conversations += 1
        report.items += len(items)
        report.left_out += unread


def read_items(items: Iterable[tuple[str | None, Any]], limits: RequestLimits) -> tuple[Sequence[Json], list[str]]:
    """Return items of the other server in their stored form, and the ids of those that cannot be read.

    Args:
        items: the items, each with its id; an item without an id gets a new one.
    """
    read: list[Json] = []
    unread: list[str] = []
    for item_id, item in items:
        try:
            read.append(_one(item_id, item, limits))
        except ApiError:
            unread.append(item_id or "an item without an id")
    return with_ids(read), unread


def _one(item_id: str | None, value: Any, limits: RequestLimits) -> Json:
    at = Location("item", limits)
    check_json(value)
    if isinstance(value, dict):
        value = {**_unsaid(value), **value, **({"id": item_id} if item_id else {})}
    [item] = check_input([value], at)
    if item["type"] in _MEANINGLESS:
        raise ApiError(400, "An item without content.")
    if item["type"] == "reasoning":
        # Sealed by the other server, if at all: it cannot be opened here.
        item.pop("encrypted_content", None)
    return item


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _unsaid(value: Json) -> Mapping[str, Any]:
    """Return the fields that an item requires here and that the other server omits."""
    kind = ITEM_KINDS.get(str(value.get("type")))
    return kind.imported if kind else {}
