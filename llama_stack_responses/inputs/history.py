"""The history of a request: the previous responses or the conversation, and the items that it names by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..chat.prompt_comparison import Prompt
from ..concurrency.offloading import in_thread_if_large, in_thread_if_many
from ..core.access import Access, Action
from ..core.errors import ApiError, bad_request, import_hint
from ..core.exchanges import EXCHANGE
from ..core.json_blocks import dumps
from ..core.owner import Owner
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..items.read_items import read_items
from ..items.refused_input import without_refused
from ..items.registry import ANSWERS
from ..requests.conversation_bodies import no_conversation
from ..requests.input_items import check_ids
from ..requests.request import CreateRequest
from ..store.archive import Archive
from ..store.codec import TooLarge
from ..store.conversation_store import Conversation, begins_with_stand_in, stand_in
from ..store.loaded_response import StoredResponse
from ..store.read_allowance import ReadAllowance
from .connection_memory import ConnectionMemory, RememberedTurn

type Hold = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """Limits of the stored data that one request may read.

    Attributes:
        referenced_bytes: maximum size of all items together that it may refer to, as JSON.
        history_bytes: maximum size of the history that it continues, and of the data read to find the items that it
            refers to: as JSON, decompressed, plus 160 bytes for each value.
        input_bytes: maximum size of the items that a request may add to that, counted in the same way.
    """

    referenced_bytes: int
    history_bytes: int
    input_bytes: int


@dataclass(frozen=True, slots=True)
class History:
    """The conversation before a request.

    Attributes:
        base: the archive's name of the stored part, or None if nothing is stored.
        stored: the items of the stored part, oldest first.
        unstored: the items after them, which only a connection remembers.
        link: the connection's record of those items.
        opening: items that represent `stored` if it has no base: the stand-in of a conversation.
    """

    base: str | None
    stored: list[Json]
    unstored: list[Json] = field(default_factory=list)
    link: RememberedTurn | None = None
    opening: Sequence[Json] = ()

    @property
    def items(self) -> list[Json]:
        """All items, oldest first."""
        return [*self.stored, *self.unstored]


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """The prompt of a stored response.

    Attributes:
        prompt: what it was made of.
        rounds: the recorded rounds of the response; empty if they were not recorded.
    """

    prompt: Prompt
    rounds: Sequence[Sequence[Any]] = ()


class HistoryReader:
    """Reads histories from the archive, for users who may read them.

    Args:
        bounds: limits of the data that one request may read.
    """

    def __init__(self, archive: Archive, access: Access, bounds: HistoryBounds) -> None:
        self._archive = archive
        self._access = access
        self._bounds = bounds

    async def before(
        self,
        request: CreateRequest,
        memory: ConnectionMemory | None = None,
        *,
        adds: bool = True,
        hold: Hold | None = None,
    ) -> History:
        """Return the history that the request continues, which `memory` may remember.

        Args:
            adds: whether the request adds to the conversation that it names, instead of only reading it.
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: the previous response or the conversation does not exist, is not this user's, or is too large.
        """
        allowance = ReadAllowance(self._bounds.history_bytes, hold)
        param = "conversation" if request.conversation else "previous_response_id"
        cut = request.truncation == "auto"
        try:
            if request.conversation:
                conversation = await self.conversation(request.conversation, "update" if adds else "read")
                items = await self._items(conversation.id, conversation.end, allowance, cut=cut)
                return History(None, items, opening=[stand_in(conversation)])
            if request.previous_response_id is None:
                return History(None, [])
            if memory and (link := memory.find(request.previous_response_id)):
                return await self._remembered(link, allowance, cut=cut)
            return await self._chain(request.previous_response_id, allowance, cut=cut)
        except TooLarge as error:
            raise self._too_long(param) from error

    def _too_long(self, param: str) -> ApiError:
        what = "The conversation" if param == "conversation" else "The history of the previous response"
        message = (
            f"{what} takes more than {self._bounds.history_bytes} bytes, the maximum that one request can continue. "
            "Set 'truncation' to 'auto' to leave out its oldest turns, unless the newest turn alone is too large. Or "
            "begin again: send the newest compaction item and the items after it as 'input'."
        )
        return bad_request(message, param, "context_length_exceeded")

    async def conversation(self, conversation_id: str, action: Action) -> Conversation:
        """Return the conversation if the user may do `action` with it.

        Raises:
            ApiError: 404 if it is unknown, deleted, or another user's; 403 if the user may read it but not do `action`.
        """
        conversation = await self._archive.conversations.load(conversation_id)
        if conversation is None or not self._access.allows("read", "conversation", conversation_id, conversation.owner):
            raise no_conversation(conversation_id)
        if not self._access.allows(action, "conversation", conversation_id, conversation.owner):
            raise ApiError(403, f"You may not {action} conversation '{conversation_id}'.")
        return conversation

    async def _remembered(self, link: RememberedTurn, allowance: ReadAllowance, *, cut: bool) -> History:
        """Return the input and output of a chain that a connection remembers."""
        unstored = link.unstored
        if begins_with_stand_in(unstored):
            opening = unstored[0]
            stored = await self._items(opening["conversation"], opening["end"], allowance, cut=cut)
            return History(None, stored, unstored[1:], link, opening=unstored[:1])
        return History(link.base, await self._stored(link.base, allowance, cut=cut), unstored, link)

    async def _stored(self, name: str | None, allowance: ReadAllowance, *, cut: bool) -> list[Json]:
        """Return the items of a history; with `cut`, the oldest turns of a too large one are left out."""
        read = self._archive.recent if cut else self._archive.history
        return await read(name, allowance)

    async def _items(self, conversation_id: str, end: int, allowance: ReadAllowance, *, cut: bool) -> list[Json]:
        """Return the items of a conversation at positions before `end`; with `cut` as for `_stored`."""
        read = self._archive.recent_of_conversation if cut else self._archive.conversations.items
        return await read(conversation_id, end, allowance)

    async def _chain(self, previous_response_id: str, allowance: ReadAllowance, *, cut: bool) -> History:
        """Return the input and output of the whole chain that ends with this response.

        Raises:
            ApiError: 400 `previous_response_not_found`, also for another user's response; 400
                `previous_response_not_ready`.
            TooLarge: there is no allowance for it.
        """
        entry = await self._archive.entry(previous_response_id)
        previous = entry or await self._archive.running(previous_response_id)
        if previous is None or not self._access.allows("read", "response", previous_response_id, previous.owner):
            raise bad_request(
                f"Previous response with id '{previous_response_id}' not found.{import_hint(previous_response_id)}",
                "previous_response_id",
                "previous_response_not_found",
            )
        if entry is None or entry.response["status"] in UNFINISHED:
            raise bad_request(
                f"Previous response '{previous_response_id}' is still in progress. Continue it after it has ended.",
                "previous_response_id",
                "previous_response_not_ready",
            )
        return History(entry.whole, await self._stored(entry.whole, allowance, cut=cut))

    async def dereference(
        self, owner: Owner, items: list[Json], param: str = "input", hold: Hold | None = None
    ) -> list[Json]:
        """Return the items, given as `param`, with each `item_reference` replaced by the stored item.

        Raises:
            ApiError: 404 for an item that is unknown, was not stored, or is another user's; 400 if one is named twice,
                or if they are too large together.
        """
        item_ids = await in_thread_if_many(partial(_references, items, param), items)
        if not item_ids:
            return items
        referenced = await self.stored_items(owner, item_ids, param, hold)
        return await in_thread_if_large(partial(_dereferenced, items, referenced, param), items)

    async def input_of(self, stored: StoredResponse, hold: Hold | None = None) -> list[Json]:
        """Return all input items of a stored response, oldest first.

        Raises:
            ApiError: they are larger than the input of a response may be.
        """
        max_bytes = self._bounds.history_bytes + self._bounds.input_bytes
        try:
            return await self._archive.history(stored.input, ReadAllowance(max_bytes, hold))
        except TooLarge as error:
            message = f"The input of this response takes more than {max_bytes} bytes, and cannot be listed."
            raise bad_request(message, "response_id", "context_length_exceeded") from error

    async def prompt_of(self, response_id: str, owner: Owner, hold: Hold | None = None) -> StoredPrompt | None:
        """Return the prompt of an owner's stored response; None if there is no such response.

        Args:
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: it is larger than the input of a response may be.
        """
        stored = await self._archive.load(response_id, hold)
        if stored is None or stored.owner != owner:
            return None
        items = await self.input_of(stored, hold)
        rounds = (stored.timing or {}).get("rounds", ())
        return StoredPrompt(Prompt(stored.response, await in_thread_if_large(partial(for_model, items), items)), rounds)

    async def stored_items(
        self, owner: Owner, item_ids: list[str], param: str, hold: Hold | None = None
    ) -> dict[str, Json]:
        """Return the owner's stored items with these ids, given in `param`, by id. If one is not stored, some may lack.

        Raises:
            ApiError: 400, they are too large together.
        """
        items: dict[str, Json] = {}
        size = 0
        # Reading an item also reads the items that were stored with it.
        allowance = ReadAllowance(self._bounds.history_bytes, hold)
        try:
            async for item_id, item in self._archive.find_items(owner, item_ids, allowance):
                items[item_id] = item
                size += await in_thread_if_large(partial(_size, item), item)
                if size > self._bounds.referenced_bytes:
                    raise _too_many(param, self._bounds.referenced_bytes)
        except TooLarge as error:
            raise _too_many(param, self._bounds.history_bytes) from error
        return items


def _references(items: list[Json], param: str) -> list[str]:
    """Return the ids of the items that are referred to; raise a 400 if one is named twice."""
    references = [item for item in items if item["type"] == "item_reference"]
    # A thousand references to one item would load as many copies.
    check_ids((), references, param)
    return [item["id"] for item in references]


def _dereferenced(items: list[Json], referenced: Mapping[str, Json], param: str) -> list[Json]:
    """Return the items with each reference replaced; raise a 404 if `referenced` does not have an item."""

    def found(item: Json) -> Json:
        if item["type"] != "item_reference":
            return item
        if item["id"] not in referenced:
            raise _no_item(item["id"], param)
        return referenced[item["id"]]

    return [found(item) for item in items]


def _size(item: Json) -> int:
    return len(dumps(item))


def _too_many(param: str, max_bytes: int) -> ApiError:
    message = (
        f"The items that '{param}' refers to, with what was stored with them, have more than {max_bytes} bytes "
        "together. Refer to fewer items, or continue with 'previous_response_id' or 'conversation'."
    )
    return bad_request(message, param, "string_above_max_length")


def _no_item(item_id: str, param: str) -> ApiError:
    return ApiError(
        404,
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input.",
        param=param,
    )


def for_model(items: list[Json]) -> list[Json]:
    """Return the items that a model can continue from, without refused input and incomplete calls."""
    return without_refused(_without_cut_calls(read_items(items)))


def _without_cut_calls(items: list[Json]) -> list[Json]:
    """Return the items without calls whose arguments are incomplete and that have no output: no client can run them."""
    answered = {item["call_id"] for item in items if item["type"] in ANSWERS.values() and "call_id" in item}
    return [item for item in items if not _is_cut_call(item) or item.get("call_id") in answered]


def _is_cut_call(item: Json) -> bool:
    return item["type"] in ANSWERS and item.get("status") == "incomplete" and EXCHANGE not in item
