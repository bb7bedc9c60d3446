"""From a request to what its response starts from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypedDict

from ..core.access import Access
from ..core.listing import with_ids
from ..core.mcp import check_approvals
from ..core.moderation import asked_texts, policy_of
from ..core.owner import Owner
from ..core.schema.items import check_call_pairs, check_ids
from ..core.schema.request import CreateRequest
from ..core.schema.shapes import DEFAULT_LIMITS, At, missing
from ..moderation.checks import Checks
from ..sealing.reasoning import PrivateReasoning
from ..sealing.sealer import Sealer
from ..sealing.summaries import PrivateSummaries
from .connection_memory import Chains
from .history import Historian, History, for_model

Json = dict[str, Any]


class Stored(TypedDict):
    """What a response stands on, as the archive takes it.

    Attributes:
        owner: whose the response is.
        base: the archive's name of the history, or None when there is none.
        base_items: all items of the history, oldest first.
        input_items: what the request adds to it, each with its id, and before them what is not stored under `base`.
    """

    owner: Owner
    base: str | None
    base_items: list[Json]
    input_items: list[Json]


@dataclass(frozen=True, slots=True)
class Start:
    """What a response starts from.

    Attributes:
        request: what the client asked for, its prompt filled in.
        items: what the model is to see, oldest first.
        stored: what is kept of it.
        history: the conversation before it.
        moderation: the response's `moderation` so far; None if nothing is to be checked.
    """

    request: CreateRequest
    items: list[Json]
    stored: Stored
    history: History
    moderation: Json | None = None

    @property
    def owner(self) -> Owner:
        """Who asked."""
        return self.stored["owner"]

    @property
    def remembered(self) -> list[Json]:
        """What a connection has to remember of it, behind the link that it goes on from."""
        known = [*self.history.opening, *self.history.unstored] if self.history.link else []
        return self.stored["input_items"][len(known) :]


class Intake:
    """Reads what requests stand on, and checks that a model can go on from there.

    Args:
        fill: fills in the stored prompt that a request names, as `with_prompt` does.
    """

    def __init__(
        self,
        historian: Historian,
        access: Access,
        sealer: Sealer,
        checks: Checks,
        fill: Callable[[CreateRequest], Awaitable[CreateRequest]],
    ) -> None:
        self._historian = historian
        self._access = access
        self._sealer = sealer
        self._checks = checks
        self._fill = fill

    async def take(self, request: CreateRequest, chains: Chains | None = None, *, adds: bool = True) -> Start:
        """What the caller's request starts from; `chains` is what its connection remembers.

        Args:
            adds: whether the response becomes part of the conversation that the request names.

        Raises:
            ApiError: the request names what is not there, or what it brings does not fit together or cannot be checked.
        """
        owner = self._access.who()
        request = await self._fill(request)
        PrivateReasoning(self._sealer, owner).check(request.input_items)
        PrivateSummaries(self._sealer, owner).check(request.input_items)
        history = await self._historian.before(request, chains, adds=adds)
        asked = request.input_items[:-1] if request.compacts else request.input_items
        new_items = await self._historian.dereference(owner, asked)
        check_ids(history.items, new_items)
        new_items = with_ids(new_items)
        items = for_model(history.items + new_items)
        if not items and not request.instructions:
            raise missing(At("input", DEFAULT_LIMITS))
        check_call_pairs(items)
        check_approvals(items, request.tools)
        stored = Stored(
            owner=owner,
            base=history.base,
            base_items=history.stored,
            # What was not stored before is, as part of what this response stands on, if it is to be stored.
            input_items=[*history.opening, *history.unstored, *new_items],
        )
        return Start(request, items, stored, history, await self._moderated(request, new_items))

    async def _moderated(self, request: CreateRequest, items: list[Json]) -> Json | None:
        policy = policy_of(request)
        return await self._checks.of_input(policy, asked_texts(request, items)) if policy else None
