"""Responses that outlive their requests: in the background, or with an Idempotency-Key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.access import Access
from ..core.errors import ApiError
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..generation.factory import GenerationFactory
from ..inputs.history import Hold
from ..inputs.request_parser import RequestParser
from ..inputs.resolver import ResolvedInput
from ..jobs.background import BackgroundJobs
from ..jobs.work_class import BACKGROUND, Work, WorkClass
from ..requests.request import CreateRequest
from ..store.archive import Archive
from ..store.records import Condition, Op, Put, VersionIs
from ..stream.events import Event
from .idempotency import IdempotencyClaim, IdempotencyKeys
from .response_reader import ResponseReader

_WINDOWS: Final = {"2h": 7_200.0, "8h": 28_800.0}
"""Seconds of the completion windows for which a response waits in the queue."""
_TIERS: Final = {"flex": Work(WorkClass.FLEX), "priority": Work(WorkClass.PRIORITY)}
"""What a background response with a service tier is queued as."""


@dataclass(slots=True)
class DetachedResponse:
    """A response that outlives its request and can be followed.

    Attributes:
        response: the response as it is now.
        replayed: whether an earlier request with the same Idempotency-Key created it.
        headers: further headers of the answer to the request.
    """

    response: Json
    replayed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue for a response that a feature creates.

    Attributes:
        response_id: the id of the response.
        work: what its job is queued as.
        ops, conditions: of the commit that queues it.
    """

    response_id: str
    work: Work
    ops: Sequence[Op] = ()
    conditions: Sequence[Condition] = ()


class DetachedResponses:
    """Creates detached responses, finds them by their keys, and waits for their ends.

    Args:
        factory: makes the responses.
        parser: says what of a request its job stores.
        jobs: runs the responses.
        keys: the Idempotency-Keys.
        archive: the stored responses.
        reader: reads responses for the caller.
        access: the identity and permissions of the caller.
        refusal_seconds: time for which a stream waits for the model server's refusal.
    """

    def __init__(
        self,
        factory: GenerationFactory,
        parser: RequestParser,
        jobs: BackgroundJobs,
        keys: IdempotencyKeys,
        archive: Archive,
        reader: ResponseReader,
        access: Access,
        refusal_seconds: float,
    ) -> None:
        self._factory = factory
        self._parser = parser
        self._jobs = jobs
        self._keys = keys
        self._archive = archive
        self._reader = reader
        self._access = access
        self._refusal_seconds = refusal_seconds

    async def create(
        self,
        start: ResolvedInput,
        body: Json,
        claim: IdempotencyClaim | None,
        more_ops: Callable[[str], Sequence[Op]] | None = None,
    ) -> DetachedResponse:
        """Create a detached response: in the background, or with a key.

        Args:
            start: what the response starts from.
            body: the request's decoded JSON.
            claim: the claim of the request's key; None if it has none.
            more_ops: returns what the commit that stores a background response writes, given its id.

        Raises:
            Conflict: another request took the key.
        """
        request, stored = start.request, start.stored
        tag = claim.tag if claim else start.tag(self._archive.placement)
        response = self._factory.begin(request, start.moderation, tag)
        work = self._work(request, body)
        keys = self._access.provider_credentials()
        claims: list[Put] = []
        free: list[VersionIs] = []
        if claim:
            claims, is_free = await self._keys.claim_ops(claim, response["id"])
            free = [is_free]
        if request.background:
            ops = [*claims, *(more_ops(response["id"]) if more_ops else ())]
            response |= {"status": "queued"}
            events, kind = await self._queued(start, response), work_of(request)
            await self._jobs.submit(
                response, work, events, keys=keys, extra_ops=ops, work=kind, conditions=free, **stored
            )
        else:
            acceptance_seconds = self._refusal_seconds if request.stream else None
            await self._jobs.submit_and_run(
                response,
                work,
                keys=keys,
                extra_ops=claims,
                conditions=free,
                acceptance_seconds=acceptance_seconds,
                **stored,
            )
        return DetachedResponse(response)

    async def queue(
        self, start: ResolvedInput, body: Json, place: Place, more_ops: Callable[[str], Sequence[Op]] | None = None
    ) -> DetachedResponse:
        """Queue a response that is no background response for its clients, at a place.

        Args:
            start: what the response starts from.
            body: the request's decoded JSON.
            place: its place.
            more_ops: as in `create`.

        Raises:
            Conflict: a condition of the place does not hold.
        """
        response = self._factory.begin(start.request, start.moderation)
        response |= {"id": place.response_id, "status": "queued"}
        events = await self._queued(start, response)
        ops = [*place.ops, *(more_ops(place.response_id) if more_ops else ())]
        await self._jobs.submit(
            response,
            self._work(start.request, body),
            events,
            keys=self._access.provider_credentials(),
            extra_ops=ops,
            work=place.work,
            conditions=place.conditions,
            **start.stored,
        )
        return DetachedResponse(response)

    def _work(self, request: CreateRequest, body: Json) -> Json:
        """Return what a job stores of its request."""
        # The input is stored with the response; this stands in for it, since a request must have one.
        newest = body["input"][-1:] if request.compacts else "..."
        # The tools are the resolved ones: they name the versions of skills.
        return self._parser.fields(body) | {"input": newest, "previous_response_id": None, "tools": request.tools}

    async def _queued(self, start: ResolvedInput, response: Json) -> list[Event]:
        """Return the first events of a background response, if it can be run.

        Raises:
            ApiError: the model, a tool, or a file of the input cannot be used.
        """
        await self._factory.inference.check_model(start.request.model)
        context = self._factory.context(start.request, response, start.owner, start.opened)
        await context.toolset.check()
        # The worker reads the files again. Reading them now refuses the request if one cannot be read. The updates
        # among the items have none.
        with context.held() as held:
            await context.model_items(start.items, held)
        return context.assembler.enqueue()

    async def find(self, claim: IdempotencyClaim, hold: Hold | None) -> DetachedResponse | None:
        """Return the response that was created with the key, once it has begun; None if the key is free."""
        while response_id := await self._keys.find(claim):
            await self._jobs.events.begun(response_id)
            if await self._archive.entry(response_id):
                return DetachedResponse(await self._reader.retrieve(response_id, hold), replayed=True)
            if await self._keys.find(claim) == response_id:
                raise ApiError(
                    409,
                    "The response that was created under this Idempotency-Key is no longer stored. "
                    "To create it again, send a new key.",
                    code="idempotency_key_reused",
                )
        return None

    async def finish(self, response_id: str, hold: Hold | None = None) -> Json:
        """Wait for the end of a detached response, and return it; `hold` as in `create`.

        Raises:
            ApiError: 503, this server shuts down first.
        """
        await self._jobs.events.ended(response_id)
        response = await self._reader.retrieve(response_id, hold)
        if response["status"] in UNFINISHED:
            raise ApiError(
                503,
                "The server is shutting down, and another server continues the response. Send the request again.",
                retry_after=1,
            )
        return response


def work_of(request: CreateRequest) -> Work:
    """Return what a background response is queued as."""
    options = request.background_options or {}
    if (window := options.get("completion_window")) in _WINDOWS:
        continued = options.get("continuation_id")
        return Work(WorkClass.WINDOW, _WINDOWS[window], f"{window} {request.model} {continued}" if continued else "")
    return _TIERS.get(request.service_tier or "", BACKGROUND)
