"""What another server kept, brought into the store once: what its imports have in common, and its conversations."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.errors import ApiError
from ..core.ids import check_conversation_id
from ..core.listing import with_ids
from ..core.owner import Owner
from ..core.schema.conversations import read_metadata
from ..core.schema.items import COMPACTION, TRIGGER, check_input
from ..core.schema.shapes import At, Limits, check_json
from ..store.conversations import Conversation, ConversationStore

Json = dict[str, Any]

_MEANINGLESS: Final = frozenset({COMPACTION, TRIGGER, "item_reference"})
"""What says nothing here: it is sealed by the other server, a request's own, or leads into its store."""

_UNSAID: Final[Mapping[str, Json]] = {"web_search_call": {"action": {"type": "search", "query": ""}}}
"""What an item has here and not on the other server, by its type."""

_NAMED: Final = 50
"""Ids of what was left out that the report names."""

_STEP: Final = 500
"""Conversations and responses after which the progress is said again."""


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
        say: takes a line on the progress, every 500 conversations and responses.
        conversations: how many were written.
        items: how many they have together.
        responses: how many were written.
        there: how many conversations and responses were in the store already, or had been.
        expired: how many responses are older than responses are kept here.
        unfinished: how many responses had not ended.
        left_out: the ids of the items, conversations and responses that could not be read.
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

    def looked_at(self, number: int = 1) -> None:
        """Count what was looked at, and say so now and then."""
        before, self._looked_at = self._looked_at, self._looked_at + number
        if before // _STEP != self._looked_at // _STEP:
            self.say(
                f"Read {self._looked_at:,}: {self.conversations:,} conversations, {self.responses:,} responses new"
            )

    def __str__(self) -> str:
        said = (
            f"Imported {_count(self.conversations, 'conversation')} with {_count(self.items, 'item')} and "
            f"{_count(self.responses, 'response')}; {self.there} were there already or deleted since; "
            f"{self.expired} are older than 'retention_days'; {self.unfinished} had not ended; "
            f"{len(self.left_out)} could not be read and were left out"
        )
        named = ", ".join(self.left_out[:_NAMED]) + (", ..." if len(self.left_out) > _NAMED else "")
        return f"{said}: {named}." if named else f"{said}."


async def import_conversations(
    store: ConversationStore, found: AsyncIterable[Found], limits: Limits, report: Report
) -> None:
    """Stores what is found, each conversation in one commit, unless one with its id is there or was imported before.

    Raises:
        CannotImport: the store is away; what was written until then stays, and the next import goes on behind it.
    """
    async for each in found:
        report.looked_at()
        try:
            check_conversation_id(each.id, "id")
            metadata = read_metadata({"metadata": dict(each.metadata)}, limits, required=False)
        except ApiError:
            report.left_out.append(each.id)
            continue
        items, unread = read_items(each.items.items(), limits)
        try:
            new = await store.bring(Conversation(each.id, each.owner, each.created_at, metadata), items)
        except ApiError as error:
            raise CannotImport(str(error)) from error
        if not new:
            report.there += 1
            continue
        report.conversations += 1
        report.items += len(items)
        report.left_out += unread


def read_items(items: Iterable[tuple[str | None, Any]], limits: Limits) -> tuple[Sequence[Json], list[str]]:
    """Items of the other server in the form in which they are stored, and the ids of those that have none.

    Args:
        items: each with its id; an item without one gets a new one.
    """
    read: list[Json] = []
    unread: list[str] = []
    for item_id, item in items:
        try:
            read.append(_one(item_id, item, limits))
        except ApiError:
            unread.append(item_id or "an item without an id")
    return with_ids(read), unread


def _one(item_id: str | None, value: Any, limits: Limits) -> Json:
    at = At("item", limits)
    check_json(value)
    if isinstance(value, dict):
        value = {**_UNSAID.get(str(value.get("type")), {}), **value, **({"id": item_id} if item_id else {})}
    [item] = check_input([value], at)
    if item["type"] in _MEANINGLESS:
        raise ApiError(400, "An item that says nothing here.")
    if item["type"] == "reasoning":
        # Sealed by the other server, if at all: nobody opens that here.
        item.pop("encrypted_content", None)
    return item


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
