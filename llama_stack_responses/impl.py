"""The Responses API itself, without HTTP and without the host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from .access import Access, Action
from .chat.inference import Inference
from .chat.profile import profile_for
from .config import ResponsesConfig
from .core.assembler import Assembler
from .core.errors import ApiError, bad_request, not_found
from .core.events import Event
from .core.ids import check_response_id, new_id
from .core.items import check_call_pairs, check_ids
from .core.listing import listed, with_ids
from .core.replay import replay
from .core.request import CreateRequest, parse_create
from .core.response import new_response
from .core.shapes import Limits
from .core.transcript import Transcript
from .files import Files, read_files
from .history import Historian, History, without_cut_calls
from .outbox import Outbox
from .run import Run
from .signals import hear_end
from .store.archive import Archive, StoredResponse
from .sweeper import Sweeper
from .tools.toolset import Toolset
from .turn import Turn, TurnLimits

Json = dict[str, Any]
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, as OpenAI pages: `data`, and whether more follows."""

    data: list[Json]
    has_more: bool


class OpenAIResponsesImpl:
    """Makes responses and gives them back.

    Nothing here is bound to an event loop before the first request: the host builds providers in another loop
    than the one that serves.

    Args:
        config: the provider's configuration.
        archive: where responses are kept.
        inference: runs the model rounds.
        files: the stored files that requests name.
        access: who asks, and what they may see.
    """

    def __init__(
        self, config: ResponsesConfig, archive: Archive, inference: Inference, files: Files, access: Access
    ) -> None:
        self.config = config
        self._archive = archive
        self._inference = inference
        self._files = files
        self._access = access
        self._historian = Historian(archive, access)
        self._limits = Limits(max_items=config.limits.input_items)
        self._passthrough = config.passthrough
        self._sweeper = Sweeper(archive, config.sweep_seconds)
        self._runs: set[Run] = set()
        self._started = False
        self._turn_limits = TurnLimits(config.limits.rounds, config.limits.inference_idle_seconds)

    async def create(self, body: Any) -> Run:
        """Begins a response.

        Args:
            body: the request's decoded JSON.

        Raises:
            ApiError: the request is wrong; nothing has been sent to a model.
        """
        self._start()
        request = parse_create(body, passthrough=self._passthrough, limits=self._limits)
        owner = self._access.who()
        history = await self._historian.before(request.previous_response_id)
        new_items = await self._historian.dereference(owner, request.input_items)
        check_ids(history.items, new_items)
        new_items = with_ids(new_items)
        items = without_cut_calls(history.items + new_items)
        check_call_pairs(items)
        return await self._begin(request, owner, history, new_items, items)

    def _start(self) -> None:
        """Starts, with the first request, what needs the event loop that serves."""
        if not self._started:
            self._started = True
            self._sweeper.start()
            hear_end(self._shut_down_runs)

    def _shut_down_runs(self) -> None:
        for run in self._runs:
            run.shut_down()

    async def _begin(
        self, request: CreateRequest, owner: Any, history: History, new_items: list[Json], items: list[Json]
    ) -> Run:
        toolset = Toolset(request.tools, request.tool_choice, parallel=request.parallel_tool_calls is not False)
        response = new_response(request, id=new_id("resp"), created_at=int(time.time()))
        assembler = Assembler(
            response, toolset.kind_of, show_logprobs=request.wants_logprobs, structured=request.wants_json
        )
        transcript = Transcript() if request.store else None
        outbox = Outbox(wanted=request.stream, transcript=transcript)
        turn = Turn(
            request,
            items,
            await read_files(items, self._files),
            profile=profile_for(request.model, self.config.profiles),
            toolset=toolset,
            assembler=assembler,
            inference=self._inference,
            outbox=outbox,
            limits=self._turn_limits,
        )

        async def keep(final: Json) -> None:
            if transcript:
                await self._archive.save(
                    final,
                    owner=owner,
                    base=history.base,
                    input_items=new_items,
                    base_items=history.items,
                    transcript=transcript.marks(),
                )

        run = Run(turn, assembler, outbox, keep)
        self._runs.add(run)
        run.when_settled(lambda: self._runs.discard(run))
        return run

    async def retrieve(self, response_id: str) -> Json:
        """The stored response.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's.
        """
        return (await self._stored(response_id, "read")).response

    async def events(self, response_id: str) -> list[Event]:
        """The events of the stored response, as they were when it was made.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's.
        """
        stored = await self._stored(response_id, "read")
        return replay(stored.response, stored.transcript)

    async def delete(self, response_id: str) -> None:
        """Deletes a response; what later responses stand on stays until they go too."""
        await self._stored(response_id, "delete")
        await self._archive.delete(response_id)

    async def cancel(self, response_id: str) -> Json:
        """Refuses: only background responses can be cancelled, and this server makes none."""
        await self._stored(response_id, "update")
        raise bad_request("Cannot cancel a synchronous response.")

    async def list(self, *, limit: int, after: str | None, order: Order, model: str | None) -> Page:
        """The caller's responses by time of creation."""
        page = await self._archive.list(self._access.who(), limit=limit, after=after, order=order, model=model)
        return Page([stored.response for stored in page.items], page.has_more)

    async def input_items(self, response_id: str, *, limit: int, after: str | None, order: Order) -> Page:
        """All items that the response was made from, the history included, each with its id."""
        items = await self._historian.input_of(await self._stored(response_id, "read"))
        if order == "desc":
            items.reverse()
        first = 0
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise bad_request(f"No item with id '{after}' is in this list.", "after", "invalid_value")
            first = ids.index(after) + 1
        return Page(listed(items[first : first + limit]), len(items) > first + limit)

    async def shutdown(self) -> None:
        """Ends what runs beside the requests and closes the store; the host calls it when it stops."""
        await self._sweeper.stop()
        await self._archive.close()

    async def _stored(self, response_id: str, action: Action) -> StoredResponse:
        check_response_id(response_id, "response_id")
        stored = await self._archive.load(response_id)
        if stored is None or not self._access.allows("read", response_id, stored.owner):
            raise not_found(response_id)
        if not self._access.allows(action, response_id, stored.owner):
            raise ApiError(403, f"You may not {action} response '{response_id}'.")
        return stored
