"""Resolves a request to the input of its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict

from ..concurrency.large_work import LargeWork
from ..core.access import Access
from ..core.input_policy import DEFAULT_POLICY, InputPolicy
from ..core.owner import Owner
from ..core.shapes import Location, missing
from ..core.types import Json
from ..items.call_pairs import check_call_pairs, with_call_ids
from ..items.listed_items import with_ids
from ..items.mcp_approvals import check_approvals
from ..requests.input_items import check_ids
from ..requests.request import CreateRequest
from ..sealing.sealed_items import Opened, SealedItems
from ..store.placement import Placement
from .connection_memory import ConnectionMemory
from .history import History, HistoryReader, Hold, for_model
from .moderation import Moderation
from .sealed_input import SealedInput


class StoredInput(TypedDict):
    """The input of a response, in the form that the archive stores.

    Attributes:
        owner: the owner of the response.
        base: the archive's name of the history, or None if there is none.
        base_items: all items of the history, oldest first.
        input_items: the items that the request adds, each with its id, after any history that is not stored under
            `base`.
    """

    owner: Owner
    base: str | None
    base_items: list[Json]
    input_items: list[Json]


@dataclass(frozen=True, slots=True)
class ResolvedInput:
    """The resolved input of a response.

    Attributes:
        request: the client's request, with its prompt filled in.
        items: the model's input, oldest first.
        stored: the part that is stored.
        history: the conversation before it.
        moderation: the response's `moderation` so far; None if nothing is to be checked.
        opened: the content of the sealed items.
    """

    request: CreateRequest
    items: list[Json]
    stored: StoredInput
    history: History
    moderation: Json | None = None
    opened: Opened = field(default_factory=Opened)

    @property
    def owner(self) -> Owner:
        """The user of the request."""
        return self.stored["owner"]

    def tag(self, placement: Placement) -> int:
        """Return the tag of the response."""
        request = self.request
        continues = request.previous_response_id or request.conversation
        return placement.of_response(self.owner, continues, self.stored["input_items"])

    @property
    def remembered(self) -> list[Json]:
        """The items that a connection has to remember, after the link that the request continues."""
        known = [*self.history.opening, *self.history.unstored] if self.history.link else []
        return self.stored["input_items"][len(known) :]


class RequestResolver:
    """Reads the history of requests, and checks that a model can continue from it.

    Args:
        moderation: checks the input of requests that ask for it.
        fill: fills in the stored prompt that a request names, and the versions of skills that it refers to.
        large_work: checks large conversations.
        policy: what happens to input of which a part is lost.
    """

    def __init__(
        self,
        history_reader: HistoryReader,
        access: Access,
        sealed: SealedItems,
        moderation: Moderation,
        fill: Callable[[CreateRequest], Awaitable[CreateRequest]],
        large_work: LargeWork,
        policy: InputPolicy = DEFAULT_POLICY,
    ) -> None:
        self._history_reader = history_reader
        self._access = access
        self._sealed = sealed
        self._sealed_input = SealedInput(sealed, history_reader, policy)
        self._moderation = moderation
        self._fill = fill
        self._large_work = large_work
        self._policy = policy

    async def resolve(
        self,
        request: CreateRequest,
        memory: ConnectionMemory | None = None,
        *,
        adds: bool = True,
        may_be_empty: bool = False,
        compacts: bool = False,
        hold: Hold | None = None,
    ) -> ResolvedInput:
        """Return the input of the response to this request; `memory` is the memory of its connection.

        Args:
            adds: whether the response becomes part of the conversation that the request names.
            may_be_empty: whether the model needs nothing to read, because it is not asked.
            compacts: whether the input only becomes a summary, as with an item that says so.
            hold: called with the number of bytes that are about to be held: stored ones, and those of sealed items; it
                may raise.

        Raises:
            ApiError: the request names something that does not exist, or its input is inconsistent or cannot be
                checked.
        """
        owner = self._access.current_user()
        request = await self._fill(request)
        opened = Opened()
        readable = await self._sealed_input.open(request.input_items, owner, opened, hold=hold)
        if readable is not request.input_items:  # a copy of all fields of each request is not free
            request = replace(request, input_items=readable)
        history = await self._history_reader.before(request, memory, adds=adds, hold=hold)
        own_items = request.input_items[:-1] if request.compacts else request.input_items
        new_items = await self._history_reader.dereference(owner, own_items, hold=hold)
        await self._sealed.open(history.items, owner, opened, verify=False, hold=hold)
        joined = partial(_joined, request, history, new_items, self._policy, request.compacts or compacts)
        new_items, items = await self._large_work.run(joined, history.stored, history.unstored, new_items)
        stored = StoredInput(
            owner=owner,
            base=history.base,
            base_items=history.stored,
            # If this response is stored, the unstored history is stored as part of its input.
            input_items=[*history.opening, *history.unstored, *new_items],
        )
        if not (items or request.instructions or may_be_empty):
            raise missing(Location("input"))
        moderation = await self._moderation.of_input(request, new_items, self._large_work)
        return ResolvedInput(request, items, stored, history, moderation, opened)


def _joined(
    request: CreateRequest, history: History, new_items: list[Json], policy: InputPolicy, compacts: bool
) -> tuple[list[Json], list[Json]]:
    """Return the new items, each with its id, and the model's input.

    Raises:
        ApiError: 400, the items are inconsistent.
    """
    check_ids(history.items, new_items)
    new_items = with_ids(with_call_ids(history.items, new_items))
    items = for_model(history.items + new_items)
    # A summary has no calls, to which an output could come.
    check_call_pairs(items, interruptible=policy.fills_calls, ended=compacts)
    check_approvals(items, request.tools)
    return new_items, items
