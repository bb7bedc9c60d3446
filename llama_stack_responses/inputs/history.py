"""What a request stands on: the responses before it and the items that it names by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.access import Access, Action
from ..core.errors import ApiError, bad_request, import_hint
from ..core.exchanges import EXCHANGE
from ..core.moderation import without_refused
from ..core.owner import Owner
from ..core.schema.conversations import no_conversation
from ..core.schema.items import ANSWERS, check_ids
from ..core.schema.request import CreateRequest
from ..store.archive import Archive, StoredResponse
from ..store.codec import dumps
from ..store.conversations import Conversation, begins_with_stand_in, stand_in
from .connection_memory import Chains, Link

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """The conversation before a request.

    Attributes:
        base: the archive's name of what is stored of it, or None when nothing is.
        stored: the items of that, oldest first.
        unstored: those behind them, which only a connection remembers.
        link: where it does.
        opening: what stands for `stored` where no base names it: a conversation's stand-in.
    """

    base: str | None
    stored: list[Json]
    unstored: list[Json] = field(default_factory=list)
    link: Link | None = None
    opening: Sequence[Json] = ()

    @property
    def items(self) -> list[Json]:
        """All items, oldest first."""
        return [*self.stored, *self.unstored]


class Historian:
    """Reads histories out of the archive, for users who may see them.

    Args:
        referenced_bytes: size of all items together that one request may refer to, as JSON.
    """

    def __init__(self, archive: Archive, access: Access, referenced_bytes: int) -> None:
        self._archive = archive
        self._access = access
        self._referenced_bytes = referenced_bytes

    async def before(self, request: CreateRequest, chains: Chains | None = None, *, adds: bool = True) -> History:
        """What the request continues, which `chains` may remember.

        Args:
            adds: whether the request adds to the conversation that it names, and does not only read it.

        Raises:
            ApiError: the previous response or the conversation is not there, or not for this user.
        """
        if request.conversation:
            conversation = await self.conversation(request.conversation, "update" if adds else "read")
            items = await self._archive.conversations.items(conversation.id, conversation.end)
            return History(None, items, opening=[stand_in(conversation)])
        if request.previous_response_id is None:
            return History(None, [])
        if chains and (link := chains.find(request.previous_response_id)):
            return await self._remembered(link)
        return await self._chain(request.previous_response_id)

    async def conversation(self, conversation_id: str, action: Action) -> Conversation:
        """The conversation, to which the user is about to do this.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's; 403 when they may only do less.
        """
        found = await self._archive.conversations.load(conversation_id)
        if found is None or not self._access.allows("read", "conversation", conversation_id, found.owner):
            raise no_conversation(conversation_id)
        if not self._access.allows(action, "conversation", conversation_id, found.owner):
            raise ApiError(403, f"You may not {action} conversation '{conversation_id}'.")
        return found

    async def _remembered(self, link: Link) -> History:
        """The input and output of a chain that a connection remembers."""
        unstored = link.unstored
        if begins_with_stand_in(unstored):
            stored = await self._archive.conversations.unfold(unstored[:1])
            return History(None, stored, unstored[1:], link, opening=unstored[:1])
        return History(link.base, await self._archive.history(link.base), unstored, link)

    async def _chain(self, previous_response_id: str) -> History:
        """The input and output of the whole chain that ends with this response.

        Raises:
            ApiError: 400 `previous_response_not_found`, also for another user's response.
        """
        entry = await self._archive.entry(previous_response_id)
        found = entry or await self._archive.under_way(previous_response_id)
        if found is None or not self._access.allows("read", "response", previous_response_id, found.owner):
            raise bad_request(
                f"Previous response with id '{previous_response_id}' not found.{import_hint(previous_response_id)}",
                "previous_response_id",
                "previous_response_not_found",
            )
        if entry is None or entry.response["status"] in ("queued", "in_progress"):
            raise bad_request(
                f"Previous response '{previous_response_id}' is still being made. Go on from it when it has ended.",
                "previous_response_id",
                "previous_response_not_ready",
            )
        return History(entry.history, await self._archive.history(entry.history))

    async def dereference(self, owner: Owner, items: list[Json], param: str = "input") -> list[Json]:
        """The items, which came as `param`, with every `item_reference` replaced by the stored item that it names.

        Raises:
            ApiError: 404 for an item that is unknown, was not stored, or is another user's; 400 if one is named twice,
                or if they are too large together.
        """
        references = [item for item in items if item["type"] == "item_reference"]
        if not references:
            return items
        # Each of a thousand references to one item would load a copy of it.
        check_ids((), references, param)
        found = await self._referenced(owner, [item["id"] for item in references], param)
        for item in references:
            if item["id"] not in found:
                raise _no_item(item["id"], param)
        return [found[item["id"]] if item["type"] == "item_reference" else item for item in items]

    async def input_of(self, stored: StoredResponse) -> list[Json]:
        """All items that a stored response was made from, oldest first."""
        return await self._archive.history(stored.input)

    async def _referenced(self, owner: Owner, item_ids: list[str], param: str) -> dict[str, Json]:
        """Those of the items that are stored, by id."""
        found: dict[str, Json] = {}
        size = 0
        async for item_id, item in self._archive.find_items(owner, item_ids):
            found[item_id] = item
            size += len(dumps(item))
            if size > self._referenced_bytes:
                message = (
                    f"The items that '{param}' refers to have more than {self._referenced_bytes} bytes together. Refer "
                    "to fewer items, or continue with 'previous_response_id' or 'conversation'."
                )
                raise bad_request(message, param, "string_above_max_length")
        return found


def _no_item(item_id: str, param: str) -> ApiError:
    return ApiError(
        404,
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input.",
        param=param,
    )


def for_model(items: list[Json]) -> list[Json]:
    """The items that a model can continue from: without what was refused before it was asked."""
    return without_refused(_without_cut_calls(items))


def _without_cut_calls(items: list[Json]) -> list[Json]:
    """Those without the calls that were cut off while they were written: nobody could run those."""
    answered = {item["call_id"] for item in items if item["type"] in ANSWERS.values() and "call_id" in item}
    return [item for item in items if not _is_cut_call(item) or item["call_id"] in answered]


def _is_cut_call(item: Json) -> bool:
    return item["type"] in ANSWERS and item.get("status") == "incomplete" and EXCHANGE not in item
