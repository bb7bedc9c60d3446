"""The Responses API, without HTTP and without the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError, OutcomeUnknown, bad_request
from ..core.ids import tag_of
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..generation.connection_options import ConnectionOptions
from ..generation.dependencies import Card, PageView, Permit
from ..generation.run import ForegroundRun
from ..inputs.history import Hold
from ..process_pool.pool import WorkerPool
from ..requests.request import CreateRequest
from ..store.commit_outcome import until_known
from ..store.records import Conflict
from ..store.running_response import RunningResponse
from ..tools.registry import available_tools
from .detached_responses import DetachedResponse, Place
from .idempotency import IdempotencyClaim
from .parts import Parts
from .readiness import ReadinessReport


class OpenAIResponsesImpl(Parts):
    """Creates, stores and serves responses."""

    @property
    def pool(self) -> WorkerPool:
        """Runs work on foreign content in processes."""
        return self._dependencies.pool

    @property
    def cards(self) -> Sequence[Card]:
        """What features show on the page."""
        return self._dependencies.cards

    @property
    def views(self) -> Sequence[PageView]:
        """The views that features add to the page."""
        return self._dependencies.views

    async def available_tools(self) -> dict[str, str]:
        """Return the hosted tools that this stack can run for the current user, each with its details.

        Raises:
            ApiError: 503, the stack cannot list its own tools.
        """
        return await available_tools(self._dependencies.tool_services)

    async def prepare(self) -> None:
        """Read the store's clock and settings before the first request, in any event loop.

        The store need not answer yet.

        Raises:
            VolatileStore: it may lose responses, and the configuration does not accept that.
        """
        try:
            await self.checks.prepare()
        finally:
            await self.archive.close()

    def start(self) -> bool:
        """Start the background tasks in the running event loop; return False if that was done before."""
        return self._lifecycle.start()

    async def health(self) -> Json:
        """Return the `status` of this server, and a `message` if it is not healthy."""
        self.start()
        return await self._health.report()

    async def ready(self) -> ReadinessReport:
        """Return whether requests should be sent to this server. Anyone may ask: it reveals no names or addresses."""
        self.start()
        return await self.processes.ready()

    async def create(
        self, body: Any, key: str | None = None, hold: Hold | None = None
    ) -> ForegroundRun | DetachedResponse:
        """Create a response, or return the one that was created with the same key.

        Args:
            body: the request's decoded JSON.
            key: the request's Idempotency-Key.
            hold: called with the number of stored bytes that are about to be held; it may raise.

        Raises:
            ApiError: the request is invalid, or 429 or 503, too many responses run here; nothing has been sent to the
                model server. Or the key belongs to another request. With a key, also: the model server refused the
                request. In each case nothing is stored, and the key is not taken.
        """
        self.start()
        return await self._in_turn(partial(self._created, body, key, hold))

    async def queue(self, body: Any, place: Place) -> None:
        """Queue a response for the current user, at a place that a feature has for it.

        Args:
            body: the request's decoded JSON.
            place: its place.

        Raises:
            ApiError: the request is invalid or cannot be admitted. Nothing is stored.
            Conflict: a condition of the place does not hold.
        """
        request = await self._parsed(body)

        async def queue(permit: Permit | None) -> DetachedResponse:
            start = await self._resolver.resolve(request)
            return await self.detached.queue(start, body, place, permit.ops if permit else None)

        await self._in_turn(lambda: self._admitted(request, queue))

    async def _in_turn[Created: ForegroundRun | DetachedResponse](
        self, create: Callable[[], Awaitable[Created]]
    ) -> Created:
        """Create a response once it is the user's turn, which lasts until the model server has accepted it."""
        turn = await self._beginnings.take()
        try:
            created = await create()
        except BaseException:
            turn.end()
            raise
        if isinstance(created, ForegroundRun):
            created.on_accepted(turn.end)
        else:
            turn.end()
            new_objects = self._factory.new_objects
            new_objects.note_ended(new_objects.note_begun())
        return created

    async def _parsed(self, body: Any, *, may_be_empty: bool = False) -> CreateRequest:
        """Parse a request; one whose response is stored is refused while the store's time is not known."""
        request = await self._parser.parse(body, may_be_empty=may_be_empty)
        if request.store:
            await self.clock.ready()
        return request

    async def _created(self, body: Any, key: str | None, hold: Hold | None) -> ForegroundRun | DetachedResponse:
        request = await self._parsed(body)
        if key is None:
            return await self._create(request, body, None, hold)
        if not request.store:
            raise bad_request(
                "An Idempotency-Key needs a stored response: omit 'store: false', or send no key.",
                "store",
                "unsupported_value",
            )
        continues = request.previous_response_id or request.conversation
        tag = tag_of(continues) if continues else None
        claimed = partial(IdempotencyClaim.of, self.access.current_user(), key, body, self.archive.placement, tag)
        claim = await in_thread_if_large(claimed, body)
        while True:
            if joined := await self.detached.find(claim, hold):
                return joined
            with suppress(Conflict):
                return await self._claimed(request, body, claim, hold)

    async def _claimed(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim, hold: Hold | None
    ) -> ForegroundRun | DetachedResponse:
        try:
            return await self._create(request, body, claim, hold)
        except OutcomeUnknown as error:
            message = (
                "The response store did not confirm whether it stored this request. Send it again with the same key."
            )
            raise ApiError(503, message, retry_after=1) from error

    async def create_on_connection(
        self, body: Any, connection: ConnectionOptions, hold: Hold | None = None
    ) -> ForegroundRun:
        """Create a streamed response on a connection, which remembers the response if it is not stored.

        Args:
            body: the request's decoded JSON.
            connection: the options and the memory of the connection.
            hold: as in `create`.

        Raises:
            ApiError: the request is invalid, or 429 or 503, too many responses run here. Nothing has been sent to the
                model server, and nothing is stored.
        """
        self.start()
        return await self._in_turn(partial(self._created_on_connection, body, connection, hold))

    async def _created_on_connection(
        self, body: Any, connection: ConnectionOptions, hold: Hold | None
    ) -> ForegroundRun:
        request = await self._parsed(body, may_be_empty=not connection.generate)
        if not request.store:
            await connection.memory.check(request.input_items)
        asks_model = connection.generate or request.prewarms

        async def run(_: Permit | None) -> ForegroundRun:
            start = await self._resolver.resolve(request, connection.memory, may_be_empty=not asks_model, hold=hold)
            return await self._foreground.run(start, connection)

        return await (self._admitted(request, run) if asks_model else run(None))

    async def _create(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim | None, hold: Hold | None
    ) -> ForegroundRun | DetachedResponse:
        async def create(permit: Permit | None) -> ForegroundRun | DetachedResponse:
            start = await self._resolver.resolve(request, hold=hold)
            if request.background or claim:
                return await self.detached.create(start, body, claim, permit.ops if permit else None)
            return await self._foreground.run(start)

        return await self._admitted(request, create)

    async def _admitted[Created: ForegroundRun | DetachedResponse](
        self, request: CreateRequest, create: Callable[[Permit | None], Awaitable[Created]]
    ) -> Created:
        """Create a response within the limits of its user.

        Args:
            create: creates it, given what it may use; None if that is not limited.

        Raises:
            ApiError: 429, a limit is reached. 403, limits of the key cannot be enforced.
        """
        permit = await self.limited.admit(request)
        if permit is None:
            return await create(None)
        try:
            created = await create(permit)
        except BaseException:
            permit.release()
            raise
        created.headers = permit.headers
        if isinstance(created, ForegroundRun):
            created.on_ended(lambda _: permit.release())
        else:
            permit.release()
        return created

    async def delete(self, response_id: str) -> None:
        """Delete a response; content that later responses refer to stays until they are deleted too."""
        if not await self.reader.is_packed(response_id, "delete"):
            response = await self.reader.find(response_id, "delete")
            if isinstance(response, RunningResponse):
                if await self.jobs.foreground.delete(response):
                    return
            elif response.response["status"] in UNFINISHED:
                await self.jobs.cancel(response_id)
        await until_known(
            lambda _: self.archive.delete(response_id),
            f"The response store did not confirm whether it deleted response '{response_id}': delete it again. "
            "A 404 means that it was deleted.",
            self.intervals,
        )
        await self.jobs.forget(response_id)

    async def cancel(self, response_id: str, hold: Hold | None = None) -> Json:
        """Cancel a background response, whichever server runs it, and return it; do nothing if it has ended.

        Args:
            response_id: the id of the response.
            hold: as in `create`.

        Raises:
            ApiError: 400, the response is not a background response.
        """
        stored = await self.reader.find(response_id, "update")
        if not stored.response["background"]:
            raise bad_request("Cannot cancel a synchronous response.")
        if stored.response["status"] in UNFINISHED:
            await self.jobs.cancel(response_id)
        return await self.reader.retrieve(response_id, hold)

    async def shutdown(self) -> None:
        """Stop the background tasks, and close the dependencies and the store; the host calls it when it stops."""
        await self._lifecycle.stop()
        await self.archive.ends.stop()
        self.large_work.close()
        await self._dependencies.close()
        await self.archive.close()
