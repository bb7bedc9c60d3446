"""Puts together what makes one response."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..chat.inference import Inference
from ..chat.profile import Profile, profile_for
from ..chat.summary import Detail, summary_request
from ..config import ResponsesConfig
from ..core.compaction import continued
from ..core.ids import new_id
from ..core.mcp import Approval
from ..core.moderation import policy_of
from ..core.owner import Owner
from ..core.schema.request import CreateRequest
from ..core.stream.assembler import Assembler
from ..core.stream.response import new_response
from ..core.unavailable_tools import Unavailable
from ..inputs.attachments import Attachments
from ..moderation.checks import Checks
from ..moderation.filter import Guard
from ..sealing.reasoning import PrivateReasoning, reasoning_sealer
from ..sealing.sealer import Sealer
from ..sealing.summaries import PrivateSummaries
from ..telemetry.telemetry import Telemetry
from ..tools.registry import tool_makers
from ..tools.toolset import Makers, Toolset
from .compaction import Compacting
from .connection_options import OnConnection
from .context_fit import Fitting
from .context_lengths import ContextLengths
from .delta_filter import Gate
from .dependencies import Surroundings
from .event_buffer import Outbox
from .fair_yield import Turnstile
from .loop import NOTHING_DONE, Progress, Turn, TurnLimits
from .model_round import Asking
from .reasoning_summary import Summarizing
from .stop_point import Boundary
from .token_counts import TokenCounts
from .tool_execution import Answering
from .warmup import Preparing

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all responses are made with.

    Attributes:
        inference: runs the model rounds.
        attachments: makes files and images fit for the models.
        makers: the tools that there are.
        profiles: what single models need.
        limits: bounds on one response.
        sealer: seals reasoning.
        lengths: what is known of models' contexts.
        counts: counts tokens.
        checks: has texts checked.
        turnstile: where streams take turns.
        telemetry: is told what is done.
        unavailable: what becomes of tools that there are not.
        mcp_approval: `require_approval` of the MCP servers for which a request does not say.
    """

    inference: Inference
    attachments: Attachments
    makers: Makers
    profiles: list[Profile]
    limits: TurnLimits
    sealer: Sealer
    lengths: ContextLengths
    counts: TokenCounts
    checks: Checks
    turnstile: Turnstile = field(default_factory=Turnstile)
    telemetry: Telemetry = field(default_factory=Telemetry)
    unavailable: Unavailable = field(default_factory=Unavailable)
    mcp_approval: Approval = "always"

    def begin(self, request: CreateRequest, moderation: Json | None = None) -> Json:
        """The response to a request, before anything has happened but the moderation of its input."""
        context = profile_for(request.model, self.profiles).replayed_reasoning(request.reasoning)
        response = new_response(
            request,
            id=new_id("resp"),
            created_at=int(time.time()),
            reasoning_context=context,
            mcp_approval=self.mcp_approval,
        )
        return response | {"moderation": moderation}

    def bench(self, request: CreateRequest, response: Json, owner: Owner) -> Bench:
        """What `response`, in progress, is built on."""
        reasoning = PrivateReasoning(self.sealer, owner)
        toolset = Toolset(request, self.makers, self.unavailable)
        assembler = Assembler(
            response,
            toolset.kind_of,
            show_logprobs=request.wants_logprobs,
            structured=request.wants_json,
            seal=reasoning.seal,
        )
        policy, moderation = policy_of(request), response["moderation"]
        guard = Guard(self.checks, policy, moderation, response["output"]) if policy and moderation else None
        summaries = PrivateSummaries(self.sealer, owner)
        return Bench(self, owner, request, toolset, assembler, reasoning, summaries, guard)


def equipped(config: ResponsesConfig, surroundings: Surroundings, sealer: Sealer) -> Workshop:
    """The workshop that a configuration describes."""
    limits, moderation = config.limits, config.moderation
    return Workshop(
        surroundings.inference,
        surroundings.attachments,
        tool_makers(surroundings.services),
        config.profiles,
        TurnLimits(
            limits.rounds,
            limits.inference_idle_seconds,
            limits.tool_seconds,
            limits.output_bytes,
            limits.output_events,
        ),
        reasoning_sealer(sealer),
        ContextLengths(surroundings.inference),
        TokenCounts(surroundings.inference, config.profiles),
        Checks(surroundings.moderator, moderation.seconds, moderation.held_characters),
        telemetry=surroundings.telemetry,
        unavailable=surroundings.services.unavailable,
        mcp_approval=config.mcp.require_approval,
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """One response's own tools, assembler, keys to its reasoning and summaries, and guard if it is checked."""

    workshop: Workshop
    owner: Owner
    request: CreateRequest
    toolset: Toolset
    assembler: Assembler
    reasoning: PrivateReasoning
    summaries: PrivateSummaries
    guard: Guard | None = None

    async def making(self, items: list[Json], outbox: Outbox, connection: OnConnection | None) -> Turn | Preparing:
        """What makes the response for a client that waits, on a connection that stays open or on one that does not.

        Raises:
            ApiError: there is no such model, if none is to be asked; or as `turn`.
        """
        if connection is None:
            return await self.turn(items, outbox)
        if connection.generate or (self.guard and self.guard.input_refusal):
            return await self.turn(items, outbox, boundary=connection.boundary)
        await self.workshop.inference.check_model(self.request.model)
        return Preparing(self.assembler)

    async def turn(
        self,
        items: list[Json],
        outbox: Outbox,
        *,
        progress: Progress = NOTHING_DONE,
        boundary: Boundary | None = None,
        after_step: Callable[[Progress], Awaitable[None]] | None = None,
    ) -> Turn:
        """The loop over `items`, history and input, that puts its events into `outbox`.

        Raises:
            ApiError: a file that the items name cannot be read.
        """
        asking = self.asking(outbox)
        return Turn(
            self.request,
            items,
            shown=await self.shown(items),
            asking=asking,
            compacting=Compacting(
                self.request,
                sent=items,
                asking=asking,
                assembler=self.assembler,
                outbox=outbox,
                summaries=self.summaries,
            ),
            toolset=self.toolset,
            assembler=self.assembler,
            outbox=outbox,
            limits=self.workshop.limits,
            telemetry=self.workshop.telemetry,
            guard=self.guard,
            progress=progress,
            boundary=boundary,
            after_step=after_step,
        )

    async def shown(self, items: list[Json]) -> list[Json]:
        """What the model is to see of the items, with its files and images.

        Raises:
            ApiError: a file that the items name cannot be read, or the model takes none of its kind.
        """
        profile = profile_for(self.request.model, self.workshop.profiles)
        instructions = self.assembler.response["instructions"]
        # Those of a prompt, which it was filled in with when the response began, are messages.
        first = instructions if isinstance(instructions, list) else []
        seen = continued([*first, *items], self.summaries.read)
        return await self.workshop.attachments.resolved(seen, profile, self.request, self.owner)

    def asking(self, outbox: Outbox) -> Asking:
        """What asks the model."""
        shop, model = self.workshop, self.request.model
        profile = profile_for(model, shop.profiles)
        instructions = self.assembler.response["instructions"]
        return Asking(
            self.request,
            profile=profile,
            toolset=self.toolset,
            inference=shop.inference,
            fitting=Fitting(model, profile, shop.counts, shop.lengths),
            outbox=outbox,
            idle_seconds=shop.limits.idle_seconds,
            output_bytes=shop.limits.output_bytes,
            turnstile=shop.turnstile,
            instructions=instructions if isinstance(instructions, str) else None,
            read_reasoning=self.reasoning.read,
            read_summary=self.summaries.read,
            gates=self._gates(profile),
        )

    async def chat(self, items: list[Json]) -> Json:
        """The chat request with which the model would be asked first.

        Raises:
            ApiError: a tool cannot say what it offers; or the items hold what the model does not take.
        """
        shop, outbox = self.workshop, Outbox(wanted=False)
        answering = Answering(self.toolset, self.assembler, outbox, shop.limits.tool_seconds, shop.telemetry)
        try:
            await self.toolset.prepare(items, answering)
            shown = await self.shown(items)
            return await self.asking(outbox).chat(shown, self.request.max_output_tokens)
        finally:
            self.toolset.release()

    def _gates(self, profile: Profile) -> list[Gate]:
        gates: list[Gate] = []
        if profile.reasoning_summary == "generated" and (detail := self.request.reasoning_summary):
            gates.append(self._summarizing(profile.summary_model or self.request.model, detail))
        if self.guard and self.guard.blocks:
            gates.append(self.guard)
        return gates

    def _summarizing(self, model: str, detail: Detail) -> Summarizing:
        shop = self.workshop
        profile = profile_for(model, shop.profiles)
        request = partial(summary_request, model, profile, detail=detail)
        return Summarizing(shop.inference, request, profile, shop.limits.idle_seconds)
