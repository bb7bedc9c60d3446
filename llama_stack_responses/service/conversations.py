"""Conversations: items that are kept until somebody deletes them, and that responses continue."""

from __future__ import annotations

import time

from ..core.access import Access
from ..core.ids import check_conversation_id, new_id
from ..core.listing import Order, Page, listed, with_ids
from ..core.schema.conversations import Json, no_conversation, no_item, read_items, read_metadata, shown
from ..core.schema.items import check_ids
from ..core.schema.shapes import Limits
from ..inputs.history import Historian
from ..sealing.reasoning import PrivateReasoning
from ..sealing.sealer import Sealer
from ..sealing.summaries import PrivateSummaries
from ..store.archive import Archive
from ..store.conversations import Conversation
from ..store.outcome import certain
from ..store.records import Conflict


class Conversations:
    """The Conversations API, without HTTP.

    Every method that takes an id raises `ApiError`: 400 if it is no conversation id, 404 if the conversation is
    unknown, deleted, or another user's, and 403 if the user may look at it only.

    Args:
        archive: where they are kept.
        historian: finds those that a user may see, and items that are named by id.
        access: who asks.
        sealer: seals private reasoning.
        limits: how much a request may hold.
    """

    def __init__(self, archive: Archive, historian: Historian, access: Access, sealer: Sealer, limits: Limits) -> None:
        self._store = archive.conversations
        self._historian = historian
        self._access = access
        self._sealer = sealer
        self._limits = limits

    async def create(self, body: Json) -> Json:
        """A new conversation, given its request's decoded JSON.

        Raises:
            ApiError: 400, the request is wrong; 404, an item that it names is not there.
        """
        metadata = read_metadata(body, self._limits, required=False)
        items = await self._read(body, required=False)
        conversation = Conversation(new_id("conv"), self._access.who(), int(time.time()), metadata)

        async def create(again: bool) -> None:
            try:
                await self._store.create(conversation, items)
            except Conflict:
                # The id is new: an earlier try made it.
                if not again:
                    raise

        await certain(create, f"The response store did not say whether it made conversation '{conversation.id}'.")
        return _shown(conversation)

    async def retrieve(self, conversation_id: str) -> Json:
        """The conversation."""
        check_conversation_id(conversation_id, "conversation_id")
        return _shown(await self._historian.conversation(conversation_id, "read"))

    async def update(self, conversation_id: str, body: Json) -> Json:
        """The conversation with other metadata.

        Raises:
            ApiError: also 400, if there is no metadata.
        """
        check_conversation_id(conversation_id, "conversation_id")
        metadata = read_metadata(body, self._limits, required=True)
        await self._historian.conversation(conversation_id, "update")
        conversation = await certain(
            lambda _: self._store.set_metadata(conversation_id, metadata),
            f"The response store did not say whether it changed conversation '{conversation_id}': retrieve it.",
        )
        if conversation is None:
            raise no_conversation(conversation_id)
        return _shown(conversation)

    async def delete(self, conversation_id: str) -> None:
        """Deletes the conversation and its items; what responses have of their own stays."""
        check_conversation_id(conversation_id, "conversation_id")
        await self._historian.conversation(conversation_id, "delete")
        await certain(
            lambda _: self._store.delete(conversation_id),
            f"The response store did not say whether it deleted conversation '{conversation_id}': delete it again. "
            "A 404 says that it was deleted.",
        )

    async def add_items(self, conversation_id: str, body: Json) -> list[Json]:
        """The items that a request's decoded JSON adds.

        Raises:
            ApiError: also 400, the request is wrong; 404, an item that it names is not there.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._historian.conversation(conversation_id, "update")
        items = await self._read(body, required=True)
        added = await certain(
            lambda again: self._store.add(conversation, items, again=again),
            f"The response store did not say whether it added the items to conversation '{conversation_id}': "
            "list its items before you add them again.",
        )
        if not added:
            raise no_conversation(conversation_id)
        return listed(items)

    async def list_items(self, conversation_id: str, *, limit: int, after: str | None, order: Order) -> Page:
        """The conversation's items in their order, or from the last backwards."""
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._historian.conversation(conversation_id, "read")
        items, has_more = await self._store.page(conversation, limit=limit, after=after, order=order)
        return Page(listed(items), has_more)

    async def retrieve_item(self, conversation_id: str, item_id: str) -> Json:
        """One item.

        Raises:
            ApiError: also 404, if it is not in the conversation.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._historian.conversation(conversation_id, "read")
        item = await self._store.find(conversation, item_id)
        if item is None:
            raise no_item(item_id)
        return listed([item])[0]

    async def delete_item(self, conversation_id: str, item_id: str) -> Json:
        """The conversation without one item.

        Raises:
            ApiError: also 404, if it is not in the conversation.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._historian.conversation(conversation_id, "update")

        async def remove(again: bool) -> bool:
            return await self._store.remove(conversation, item_id) or again

        removed = await certain(
            remove,
            f"The response store did not say whether it deleted item '{item_id}': delete it again. "
            "A 404 says that it was deleted.",
        )
        if not removed:
            raise no_item(item_id)
        return _shown(conversation)

    async def _read(self, body: Json, *, required: bool) -> list[Json]:
        """A request's items, each with an id, those that are named by id looked up."""
        owner = self._access.who()
        items = read_items(body, self._limits, required=required)
        PrivateReasoning(self._sealer, owner).check(items)
        PrivateSummaries(self._sealer, owner).check(items)
        items = await self._historian.dereference(owner, items, "items")
        check_ids([], items, "items")
        return with_ids(items)


def _shown(conversation: Conversation) -> Json:
    return shown(conversation.id, conversation.created_at, conversation.metadata)
