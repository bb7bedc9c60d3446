"""Builds generations and their collaborators."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..admission import Reservation
from ..chat.adaptation.adaptation import Step
from ..chat.inference import Inference, ModelServer
from ..chat.profile import Profile, profile_for, steps_of
from ..chat.summary import Detail, summary_request
from ..concurrency.fair_yield import FairYield
from ..concurrency.large_work import LargeWork, WorkOnValues
from ..config import ResponsesConfig
from ..config.server_profiles import ServerProfiles, merged
from ..core.ids import new_id
from ..core.owner import Owner
from ..core.types import Json
from ..inputs.attachments import Attachments
from ..inputs.moderation import Moderation, OutputModeration
from ..items.compaction import continued
from ..items.mcp_approvals import Approval
from ..lifecycle.garbage import NewObjects
from ..process_pool.pool import WorkerPool
from ..requests.configuration_updates import configured
from ..requests.request import CreateRequest
from ..requests.unavailable_tools import Unavailable
from ..sealing.reasoning import PrivateReasoning
from ..sealing.sealed_items import Opened, SealedItems, unopened
from ..sealing.sealer import Sealer
from ..sealing.summaries import PrivateSummaries
from ..store.learned_adaptations import LearnedSteps
from ..store.records import Records
from ..stream.assembler import Assembler
from ..stream.response import new_response
from ..telemetry.instrumentation import Telemetry
from ..tools.mcp.list_budget import ServerBounds
from ..tools.registry import tool_makers
from ..tools.toolset import Makers, Toolset
from .activity import Activity
from .auto_compaction import AutoCompaction
from .cache_diagnostics import CacheDiagnostics, PromptOf, no_prompt
from .connection_options import ConnectionOptions
from .context_fit import ContextFit
from .delta_filter import DeltaFilter
from .dependencies import Dependencies
from .event_buffer import EventBuffer
from .held_answer import check_in_worker
from .held_output import HeldOutput
from .loop import NOTHING_DONE, Generation, GenerationLimits, GenerationProgress
from .model_round import ModelRound
from .model_server_queues import ModelServerQueues
from .owner_names import NameOwner, name_owner, no_owner
from .reasoning_summary import ReasoningSummarizer
from .request_adaptation import ModelServers, digest
from .shared_timer import SharedTimer
from .stop_point import StopPoint
from .timeline import Timeline
from .token_counts import TokenCounts
from .tool_execution import ToolExecution
from .warmup import WarmUp


@dataclass(frozen=True, slots=True)
class GenerationFactory:
    """Builds generations from the services that all of them share.

    Attributes:
        inference: runs the model rounds.
        attachments: resolves files and images for the models.
        makers: the available tools.
        profiles: the profiles of models.
        limits: bounds on one response.
        sealed: opens sealed items.
        counts: counts tokens.
        moderation: moderates input and output.
        servers: changes chat requests as their model servers need it.
        large_work: does the work on large conversations.
        pool: checks answers against the schemas of clients.
        prompt_of: reads the prompt of a stored response.
        fair_yield: schedules concurrent streams.
        timer: has the timeouts of concurrent streams.
        new_objects: counts the responses that begin and end, and what they read.
        telemetry: records spans and metrics.
        queues: the queues of the model servers.
        unavailable: how requests for unavailable tools are handled.
        mcp_approval: default `require_approval` of MCP servers.
        keeps_requests: whether the chat requests of stored responses are recorded.
        name_owner: names the owner of a response in its log lines and spans.
        activity: counts what this server does.
        clock: returns the time of creation of a response, in seconds since the epoch: that of the store's clock, by
            which responses expire.
    """

    inference: Inference
    attachments: Attachments
    makers: Makers
    profiles: list[Profile]
    limits: GenerationLimits
    sealed: SealedItems
    counts: TokenCounts
    moderation: Moderation
    servers: ModelServers
    large_work: LargeWork
    pool: WorkerPool
    prompt_of: PromptOf = no_prompt
    fair_yield: FairYield = field(default_factory=FairYield)
    timer: SharedTimer = field(default_factory=SharedTimer)
    new_objects: NewObjects = field(default_factory=NewObjects)
    telemetry: Telemetry = field(default_factory=Telemetry)
    queues: ModelServerQueues = field(default_factory=ModelServerQueues)
    unavailable: Unavailable = field(default_factory=Unavailable)
    name_owner: NameOwner = no_owner
    mcp_approval: Approval = "always"
    keeps_requests: bool = False
    activity: Activity = field(default_factory=Activity)
    clock: Callable[[], float] = time.time

    def begin(self, request: CreateRequest, moderation: Json | None = None, tag: int = 0) -> Json:
        """Return the initial response object for a request.

        Args:
            request: the request.
            moderation: the result of the moderation of its input; None without moderation.
            tag: the tag of its id.
        """
        context = profile_for(request.model, self.profiles).replayed_reasoning(request.reasoning)
        response = new_response(
            request,
            id=new_id("resp", tag),
            created_at=int(self.clock()),
            reasoning_context=context,
            mcp_approval=self.mcp_approval,
        )
        return response | {"moderation": moderation}

    def context(
        self, request: CreateRequest, response: Json, owner: Owner, opened: Opened | None = None
    ) -> GenerationContext:
        """Return the collaborators of the generation of `response`.

        Args:
            request: the request.
            response: the response as it is so far.
            owner: the owner of the response.
            opened: the content of sealed items that were opened before.
        """
        opened = opened or Opened()
        reasoning = PrivateReasoning(self.sealed.sealer, owner, opened)
        toolset = Toolset(request, self.makers, self.unavailable, self.limits.servers, self.limits.tools)
        assembler = Assembler(
            response,
            toolset.kind_of,
            show_logprobs=request.wants_logprobs,
            seal=reasoning.seal,
            whole_of=toolset.whole_of,
            meant=toolset.meant,
        )
        moderation_filter = self.moderation.of_output(request, response)
        summaries = PrivateSummaries(self.sealed.sealer, owner, opened)
        timeline = Timeline(self.activity, owner, keeps_requests=self.keeps_requests and request.store)
        return GenerationContext(
            self, owner, request, toolset, assembler, reasoning, summaries, moderation_filter, timeline
        )


def build_factory(
    config: ResponsesConfig,
    dependencies: Dependencies,
    records: Records,
    sealer: Sealer,
    large_work: LargeWork,
    prompt_of: PromptOf,
    clock: Callable[[], float],
) -> GenerationFactory:
    """Return the factory for a configuration."""
    return GenerationFactory(
        dependencies.inference,
        dependencies.attachments,
        tool_makers(dependencies.tool_services),
        config.profiles,
        _limits(config),
        SealedItems(sealer, config.limits.history_of_one),
        TokenCounts(dependencies.inference, config.profiles),
        dependencies.moderation,
        _model_servers(config, dependencies, LearnedSteps(records), large_work, clock),
        large_work,
        dependencies.pool,
        prompt_of,
        telemetry=dependencies.telemetry,
        queues=ModelServerQueues(config.model_servers, dependencies.telemetry),
        unavailable=Unavailable(config.unavailable_tools),
        mcp_approval=config.mcp.require_approval,
        keeps_requests=dependencies.keeps_chat_requests,
        name_owner=name_owner(config.log_owner),
        activity=dependencies.activity,
        clock=clock,
    )


def _limits(config: ResponsesConfig) -> GenerationLimits:
    limits = config.limits
    return GenerationLimits(
        rounds=limits.rounds,
        idle_seconds=limits.inference_idle_seconds,
        tool_seconds=limits.tool_seconds,
        output_bytes=limits.output_bytes,
        output_events=limits.output_events,
        tool_output_bytes=limits.tool_output_bytes,
        servers=ServerBounds(limits.mcp_servers, config.mcp.lists_bytes),
        tools=limits.request_limits.max_tools,
        repeated_rounds=limits.repeated_rounds,
    )


def _model_servers(
    config: ResponsesConfig,
    dependencies: Dependencies,
    learned: LearnedSteps,
    large_work: LargeWork,
    clock: Callable[[], float],
) -> ModelServers:
    profiles = ServerProfiles(config.profiles_file)

    def settled(server: ModelServer, model: str) -> list[Step]:
        own = profile_for(model, config.profiles)
        return merged([*profiles.steps(server, model), *steps_of(own.parameters, own.dialect)])

    settings = digest(repr([config.profiles, profiles.entries]))
    inference, telemetry = dependencies.inference, dependencies.telemetry
    return ModelServers(inference, settled, settings, learned, large_work, telemetry, clock)


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """The collaborators of one generation.

    Attributes:
        factory: the services that all generations share.
        owner: the owner of the response.
        request: the request.
        toolset: the request's tools.
        assembler: builds the response.
        reasoning: seals and opens the owner's reasoning items.
        summaries: seals and opens the owner's compaction summaries.
        moderation_filter: filters the output; None if it is not moderated.
        timeline: records when its parts came.
    """

    factory: GenerationFactory
    owner: Owner
    request: CreateRequest
    toolset: Toolset
    assembler: Assembler
    reasoning: PrivateReasoning
    summaries: PrivateSummaries
    moderation_filter: OutputModeration | None = None
    timeline: Timeline = field(default_factory=Timeline)

    async def generation_for(
        self, items: list[Json], event_buffer: EventBuffer, connection: ConnectionOptions | None
    ) -> Generation | WarmUp:
        """Return the generation of a foreground response, or a warm-up if the connection asks for one.

        Args:
            items: the history and the input.
            event_buffer: receives the events.
            connection: the options of a WebSocket connection; None for any other request.

        Raises:
            ApiError: the model of a warm-up does not exist; or as in `generation`.
        """
        if connection is None:
            return await self.generation(items, event_buffer)
        asks_model = connection.generate or self.request.prewarms
        if asks_model or (self.moderation_filter and self.moderation_filter.input_refusal):
            return await self.generation(items, event_buffer, stop_point=connection.stop_point)
        await self.factory.inference.check_model(self.request.model)
        return WarmUp(self.assembler, self.timeline.counts)

    async def generation(
        self,
        items: list[Json],
        event_buffer: EventBuffer,
        *,
        progress: GenerationProgress = NOTHING_DONE,
        stop_point: StopPoint | None = None,
        after_step: Callable[[GenerationProgress], Awaitable[None]] | None = None,
    ) -> Generation:
        """Return a generation.

        Args:
            items: the history and the input.
            event_buffer: receives the events.
            progress: what earlier tries have finished.
            stop_point: ends the generation early.
            after_step: receives the progress after each step.

        Raises:
            ApiError: a file that the items refer to cannot be read.
        """
        work = self.factory.large_work.on(items)
        request, without_updates = await work.run(partial(configured, self.request, items))
        self.assembler.structured = request.wants_json
        held = self.held()
        model_round = self.model_round(request, event_buffer, held)
        return Generation(
            self.request,
            items,
            model_items=await self.model_items(without_updates, held, work),
            held=held,
            model_round=model_round,
            auto_compaction=AutoCompaction(
                self.request,
                sent=items,
                model_round=model_round,
                assembler=self.assembler,
                event_buffer=event_buffer,
                summaries=self.summaries,
                large_work=self.factory.large_work,
            ),
            toolset=self.toolset,
            assembler=self.assembler,
            event_buffer=event_buffer,
            limits=self.factory.limits,
            telemetry=self.factory.telemetry,
            moderation_filter=self.moderation_filter,
            cache_diagnostics=self._cache_diagnostics(held),
            progress=progress,
            stop_point=stop_point,
            after_step=after_step,
        )

    def held(self) -> Reservation:
        """Return a reservation for contents of files and images, and for output; the caller must release it."""
        return self.factory.attachments.contents.reserve(self.owner)

    async def model_items(
        self, items: Sequence[Json], held: Reservation, work: WorkOnValues | None = None
    ) -> list[Json]:
        """Return the items for the model, with resolved files and images, which `held` counts.

        Args:
            items: the history and the input, without the updates among them, which the model would see.
            held: counts the content of files and images.
            work: runs work on the items, if they were measured before.

        Raises:
            ApiError: a file that the items refer to cannot be read, or the model does not accept files of its kind;
                `held` is released.
        """
        profile = profile_for(self.request.model, self.factory.profiles)
        instructions = self.assembler.response["instructions"]
        # The instructions of a prompt template are messages, filled in when the response was created.
        first = instructions if isinstance(instructions, list) else []
        opened = self.reasoning.opened
        whole = [*first, *items]
        if work is None or first:
            work = self.factory.large_work.on(whole)
        try:
            sealed = await work.run(partial(unopened, items, opened))
            await self.factory.sealed.open(sealed, self.owner, opened, verify=False)
            shown = await work.run(partial(continued, whole, self.summaries.read))
            return await self.factory.attachments.resolved(shown, profile, self.request, self.owner, held)
        except BaseException:
            held.release()
            raise

    def _cache_diagnostics(self, held: Reservation) -> CacheDiagnostics | None:
        """Return the comparison with another response's prompt, if the request wants one."""
        factory, response_id = self.factory, self.request.compared_response_id
        if response_id is None:
            return None
        profile = profile_for(self.request.model, factory.profiles)
        return CacheDiagnostics(response_id, self.owner, factory.prompt_of, profile, factory.large_work, held.add)

    def model_round(self, request: CreateRequest, event_buffer: EventBuffer, held: Reservation) -> ModelRound:
        """Return the runner of the model rounds; `held` counts their output.

        Args:
            request: the request, with the updates among its items.
            event_buffer: receives the events.
            held: counts the output.
        """
        factory, model = self.factory, request.model
        profile = profile_for(model, factory.profiles)
        instructions = self.assembler.response["instructions"]
        return ModelRound(
            request,
            profile=profile,
            toolset=self.toolset,
            inference=factory.inference,
            servers=factory.servers,
            queues=factory.queues,
            check_json=check_in_worker(factory.pool),
            context_fit=ContextFit(model, profile, factory.counts, factory.servers, factory.large_work),
            event_buffer=event_buffer,
            idle_seconds=factory.limits.idle_seconds,
            output_bytes=factory.limits.output_bytes,
            output=HeldOutput(held),
            fair_yield=factory.fair_yield,
            timer=factory.timer,
            new_objects=factory.new_objects,
            instructions=instructions if isinstance(instructions, str) else None,
            read_reasoning=self.reasoning.read,
            filters=self._filters(profile),
            timeline=self.timeline,
        )

    async def chat(self, items: list[Json], held: Reservation) -> Json:
        """Return the chat request of the first round, without sending it; `held` counts its files and images.

        Raises:
            ApiError: a tool cannot determine its functions, or the model does not accept a part of the items.
        """
        factory, event_buffer = self.factory, EventBuffer(wanted=False)
        tool_execution = ToolExecution(
            self.toolset,
            self.assembler,
            event_buffer,
            factory.limits.tool_seconds,
            factory.telemetry,
            HeldOutput(held),
            factory.fair_yield,
        )
        try:
            await self.toolset.prepare(items, tool_execution)
            work = factory.large_work.on(items)
            request, without_updates = await work.run(partial(configured, self.request, items))
            model_round = self.model_round(request, event_buffer, held)
            return await model_round.chat(
                await self.model_items(without_updates, held, work), request.max_output_tokens
            )
        finally:
            self.toolset.release()

    def _filters(self, profile: Profile) -> list[DeltaFilter]:
        filters: list[DeltaFilter] = []
        if profile.reasoning_summary == "generated" and (detail := self.request.reasoning_summary):
            filters.append(self._summarizing(profile.summary_model or self.request.model, detail))
        if self.moderation_filter and self.moderation_filter.blocks:
            filters.append(self.moderation_filter)
        return filters

    def _summarizing(self, model: str, detail: Detail) -> ReasoningSummarizer:
        factory = self.factory
        profile = profile_for(model, factory.profiles)
        request = partial(summary_request, model, profile, detail=detail)
        return ReasoningSummarizer(
            factory.inference,
            factory.servers,
            factory.queues,
            request,
            profile,
            factory.limits.idle_seconds,
            factory.timer,
        )
