"""The Conversations API, without HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ..concurrency.large_work import LargeWork
from ..core.access import Access
from ..core.ids import check_conversation_id, new_id
from ..core.input_policy import DEFAULT_POLICY, InputPolicy
from ..core.shapes import RequestLimits
from ..core.types import Json
from ..generation.dependencies import AdmitItems
from ..inputs.history import HistoryReader, Hold
from ..inputs.sealed_input import SealedInput
from ..intervals import DEFAULT, Intervals
from ..items.call_pairs import with_call_ids
from ..items.listed_items import Order, Page, listed, with_ids
from ..requests.conversation_bodies import (
    check_fields,
    conversation_object,
    no_conversation,
    no_item,
    read_items,
    read_metadata,
)
from ..requests.input_items import check_ids
from ..sealing.sealed_items import Opened, SealedItems
from ..store.archive import Archive
from ..store.commit_outcome import until_known
from ..store.conversation_store import Conversation
from ..store.read_allowance import ReadAllowance


class Conversations:
    """Conversations: lists of items that are kept until they are deleted, and that responses continue.

    Every method that takes a conversation id raises `ApiError`: 400 if it is not a conversation id, 404 if the
    conversation is unknown, deleted, or another user's, and 403 if the user may only read it.

    Args:
        archive: stores the conversations.
        history_reader: reads the conversations that a user may access, and items by id.
        access: the identity and permissions of the caller.
        sealed: opens sealed items.
        limits: limits on a request.
        large_work: checks large requests.
        intervals: how often and how long to ask the store for the outcome of a commit.
        policy: what happens to items of which a part is lost.
        refuse_unknown: whether an unknown field of a request is an error; otherwise it is ignored.
        admit_items: admits what is stored; None admits all.
        clock_ready: waits until the store's time is known, from which a conversation has the time of its last change;
            None if it is known.
    """

    def __init__(
        self,
        archive: Archive,
        history_reader: HistoryReader,
        access: Access,
        sealed: SealedItems,
        limits: RequestLimits,
        large_work: LargeWork,
        intervals: Intervals = DEFAULT,
        policy: InputPolicy = DEFAULT_POLICY,
        *,
        refuse_unknown: bool = True,
        admit_items: AdmitItems | None = None,
        clock_ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._admit_items, self._clock_ready = admit_items, clock_ready
        self._refuse_unknown = refuse_unknown
        self._intervals = intervals
        self._store, self._placement = archive.conversations, archive.placement
        self._clock = archive.clock
        self._history_reader = history_reader
        self._access = access
        self._sealed_input = SealedInput(sealed, history_reader, policy)
        self._limits = limits
        self._large_work = large_work

    async def create(self, body: Json, hold: Hold | None = None) -> Json:
        """Create a conversation from the request's decoded JSON.

        Args:
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: 400, the request is invalid; 404, an item that it refers to does not exist; 429, a limit is
                reached.
        """
        self._check_fields(body, "items", "metadata")
        metadata = read_metadata(body, self._limits, required=False)
        items = await self._read(body, hold, required=False)
        await self._admit(items)
        await self._know_time()
        conversation = Conversation(self._new_id(), self._access.current_user(), int(self._clock()), metadata)

        async def create(created: bool) -> None:
            if not created:
                await self._store.create(conversation, items)

        await until_known(
            create,
            f"The response store did not confirm whether it created conversation '{conversation.id}'.",
            self._intervals,
        )
        return _as_object(conversation)

    def _new_id(self) -> str:
        return new_id("conv", self._placement.of_conversation())

    async def retrieve(self, conversation_id: str) -> Json:
        """Return the conversation."""
        check_conversation_id(conversation_id, "conversation_id")
        return _as_object(await self._history_reader.conversation(conversation_id, "read"))

    async def update(self, conversation_id: str, body: Json) -> Json:
        """Replace the conversation's metadata, and return the conversation.

        Raises:
            ApiError: also 400, the metadata is missing or invalid.
        """
        check_conversation_id(conversation_id, "conversation_id")
        self._check_fields(body, "metadata")
        metadata = read_metadata(body, self._limits, required=True)
        await self._know_time()
        await self._history_reader.conversation(conversation_id, "update")
        conversation = await until_known(
            lambda _: self._store.set_metadata(conversation_id, metadata),
            f"The response store did not confirm whether it changed conversation '{conversation_id}': retrieve it.",
            self._intervals,
        )
        if conversation is None:
            raise no_conversation(conversation_id)
        return _as_object(conversation)

    async def delete(self, conversation_id: str) -> None:
        """Delete the conversation and its items; stored responses keep their own history."""
        check_conversation_id(conversation_id, "conversation_id")
        await self._history_reader.conversation(conversation_id, "delete")
        await until_known(
            lambda _: self._store.delete(conversation_id),
            f"The response store did not confirm whether it deleted conversation '{conversation_id}': delete it again. "
            "A 404 means that it was deleted.",
            self._intervals,
        )

    async def add_items(self, conversation_id: str, body: Json, hold: Hold | None = None) -> list[Json]:
        """Add the items of the request's decoded JSON, and return them; `hold` is as in `create`.

        Raises:
            ApiError: also 400, the request is invalid; 404, an item that it refers to does not exist; 429, a limit is
                reached.
        """
        check_conversation_id(conversation_id, "conversation_id")
        self._check_fields(body, "items")
        await self._know_time()
        conversation = await self._history_reader.conversation(conversation_id, "update")
        items = await self._read(body, hold, required=True)
        await self._admit(items)

        async def add(added: bool) -> bool:
            return added or await self._store.add(conversation, items)

        added = await until_known(
            add,
            f"The response store did not confirm whether it added the items to conversation '{conversation_id}': "
            "list its items before you add them again.",
            self._intervals,
        )
        if not added:
            raise no_conversation(conversation_id)
        return listed(items)

    async def _know_time(self) -> None:
        """Raise `ApiError` 503 if the store does not say its time: other servers expire conversations by it."""
        if self._clock_ready:
            await self._clock_ready()

    async def _admit(self, items: Sequence[Json]) -> None:
        if self._admit_items:
            await self._admit_items(self._access.current_user(), items)

    async def list_items(
        self, conversation_id: str, *, limit: int, after: str | None, order: Order, hold: Hold | None = None
    ) -> Page:
        """Return a page of the conversation's items.

        Args:
            limit: maximum number of items of the page.
            after: the id of the item before the page; None for the first page.
            order: `asc` for oldest first, `desc` for newest first.
            hold: as in `create`.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._history_reader.conversation(conversation_id, "read")
        allowance = ReadAllowance(hold=hold)
        items, has_more = await self._store.page(
            conversation, limit=limit, after=after, order=order, allowance=allowance
        )
        return Page(listed(items), has_more)

    async def retrieve_item(self, conversation_id: str, item_id: str, hold: Hold | None = None) -> Json:
        """Return one item; `hold` is as in `create`.

        Raises:
            ApiError: also 404, the item is not in the conversation.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._history_reader.conversation(conversation_id, "read")
        item = await self._store.find(conversation, item_id, ReadAllowance(hold=hold))
        if item is None:
            raise no_item(item_id)
        return listed([item])[0]

    async def delete_item(self, conversation_id: str, item_id: str) -> Json:
        """Delete one item, and return the conversation.

        Raises:
            ApiError: also 404, the item is not in the conversation.
        """
        check_conversation_id(conversation_id, "conversation_id")
        conversation = await self._history_reader.conversation(conversation_id, "update")

        async def remove(removed: bool) -> bool:
            return removed or await self._store.remove(conversation, item_id)

        removed = await until_known(
            remove,
            f"The response store did not confirm whether it deleted item '{item_id}': delete it again. "
            "A 404 means that it was deleted.",
            self._intervals,
        )
        if not removed:
            raise no_item(item_id)
        return _as_object(conversation)

    def _check_fields(self, body: Json, *known: str) -> None:
        if self._refuse_unknown:
            check_fields(body, *known)

    async def _read(self, body: Json, hold: Hold | None, *, required: bool) -> list[Json]:
        """Return the items of a request, each with an id, and with item references resolved."""
        owner = self._access.current_user()
        read = partial(read_items, body, self._limits, required=required)
        items = await self._large_work.run(read, body)
        items = await self._sealed_input.open(items, owner, Opened(), param="items", hold=hold)
        items = await self._history_reader.dereference(owner, items, "items", hold)
        check_ids([], items, "items")
        return with_ids(with_call_ids((), items, "items"))


def _as_object(conversation: Conversation) -> Json:
    return conversation_object(conversation.id, conversation.created_at, conversation.metadata)
