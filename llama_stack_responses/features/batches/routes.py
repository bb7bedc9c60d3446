"""The routes under `/v1/batches`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

from fastapi import APIRouter, Request, Response

from ...core.errors import ApiError
from ...core.ids import check_id
from ...core.shapes import or_null
from ...core.types import Json
from ...service.idempotency import IdempotencyClaim
from ...service.responses import OpenAIResponsesImpl
from ...store.content_names import Hasher
from ...store.records import Conflict
from ...wire.http_responses import JsonResponse
from ...wire.openapi import PAGING, TEXT, WHOLE, an_id, constant, described, one_of, page, whole
from ...wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from ...wire.request_headers import idempotency_key
from ...wire.route_admission import RouteAdmission
from .new_batch import ENDPOINTS, SCHEMA, checked_batch
from .objects import TIMES, batch_object
from .parts import Parts
from .rows import Batch, Status
from .stored_batches import cancelled, no_batch

_BATCH: Final = whole(
    object=constant("batch"),
    id=an_id("batch"),
    endpoint=one_of(*ENDPOINTS),
    model=or_null(TEXT),
    errors=or_null({"type": "object"}),
    input_file_id=TEXT,
    completion_window=TEXT,
    status=one_of(*get_args(Status.__value__)),
    output_file_id=or_null(TEXT),
    error_file_id=or_null(TEXT),
    created_at=WHOLE,
    expires_at=WHOLE,
    **{name: or_null(WHOLE) for name in TIMES},
    request_counts=whole(total=WHOLE, completed=WHOLE, failed=WHOLE),
    usage={"type": "object"},
    metadata=or_null({"type": "object"}),
)


@dataclass(frozen=True, slots=True)
class BatchRoutes:
    """Answers the requests for batches.

    Attributes:
        impl: knows the user of the current request.
        parts: what the work for batches needs.
        look: has the dispatcher look for work, for this batch.
    """

    impl: OpenAIResponsesImpl
    parts: Parts
    look: Callable[[str], None]
    limits: RouteAdmission

    async def create(self, request: Request) -> Response:
        given = checked_batch(await self.limits.bodies.json(request))
        now, settings = await self.parts.batches.now(), self.parts.settings
        batch = Batch(
            Batch.new_id(now, self._tag),
            self.impl.access.current_user(),
            given["endpoint"],
            given["input_file_id"],
            given["completion_window"],
            now,
            now + settings.window_hours * 3600,
            metadata=given.get("metadata"),
            output_seconds=given.get("output_expires_after", {}).get("seconds"),
        )
        batch = await self._with_keys(batch)
        if found := await self._created_before(batch, self._claim(request, given)):
            return JsonResponse(await self._object(found), headers={"idempotent-replayed": "true"})
        self.look(batch.id)
        return JsonResponse(batch_object(batch))

    def _claim(self, request: Request, given: Json) -> IdempotencyClaim | None:
        key = idempotency_key(request.headers)
        if key is None:
            return None
        return IdempotencyClaim.of(self.impl.access.current_user(), key, given, self.impl.archive.placement, self._tag)

    async def _created_before(self, batch: Batch, claim: IdempotencyClaim | None) -> str | None:
        """Store a batch and return None; return the id of the batch that its key has if that was used before."""
        most, keys = self.parts.settings.per_user, self.parts.keys
        if claim is None:
            await self.parts.batches.create(batch, most)
            return None
        while (found := await keys.find(claim)) is None:
            with suppress(Conflict):
                await self.parts.batches.create(batch, most, await keys.claim_ops(claim, batch.id))
                return None
        return found

    async def retrieve(self, batch_id: str) -> Response:
        return JsonResponse(await self._object(batch_id))

    async def cancel(self, batch_id: str) -> Response:
        now = await self.parts.batches.now()
        changed = await self.parts.batches.change(self._of, self._checked(batch_id), partial(cancelled, now))
        if changed is None:
            raise no_batch(batch_id)
        self.look(batch_id)
        return JsonResponse(await self._object(batch_id))

    async def list(self, request: Request) -> Response:
        query = Query(request)
        if after := query.text("after"):
            check_id("batch_", after, "after")
        found, more = await self.parts.batches.page(self._of, after, query.limit())
        shown = [await self.parts.batches.counted(self._of, each.id) for each in found]
        return page_of([batch_object(*each) for each in shown if each], has_more=more)

    async def _with_keys(self, batch: Batch) -> Batch:
        keys = self.impl.access.provider_credentials()
        if not keys:
            return batch
        await self.parts.sealer.load()
        self.parts.sealer.check_protects_rows("your keys, as a batch requires")
        return replace(batch, sealed=self.parts.seal_keys(keys, batch))

    @property
    def _tag(self) -> int:
        return self.impl.archive.placement.of_owner(self.impl.access.current_user())

    @property
    def _of(self) -> str:
        return Hasher(self.impl.access.current_user()).owner

    def _checked(self, batch_id: str) -> str:
        try:
            return check_id("batch_", batch_id, "batch_id")
        except ApiError:
            raise no_batch(batch_id) from None

    async def _object(self, batch_id: str) -> dict[str, Any]:
        """Return a batch of the current user.

        Raises:
            ApiError: 404, the user has none with this id.
        """
        if found := await self.parts.batches.counted(self._of, self._checked(batch_id)):
            return batch_object(*found)
        raise no_batch(batch_id)


def batches_router(routes: BatchRoutes) -> APIRouter:
    """Return the routes for batches."""
    router = APIRouter(prefix="/v1/batches", tags=["Batches"], route_class=routes_within(routes.limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    example = {"input_file_id": "file-abc123", "endpoint": "/v1/responses", "completion_window": "24h"}
    paging = {name: PAGING[name] for name in ("after", "limit")}
    add("POST", "", routes.create, "Create a batch", described(_BATCH, body=SCHEMA, example=example))
    add("GET", "", routes.list, "List batches", described(page(_BATCH), query=paging))
    add("GET", "/{batch_id}", routes.retrieve, "Retrieve a batch", described(_BATCH))
    add("POST", "/{batch_id}/cancel", routes.cancel, "Cancel a batch", described(_BATCH))
    add_fallback(router)
    return router
