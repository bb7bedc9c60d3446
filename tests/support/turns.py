"""A turn without the workshop that makes it in a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.compaction import continued
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.core.stream.assembler import Assembler
from llama_stack_responses.generation.compaction import Compacting
from llama_stack_responses.generation.context_fit import Fitting
from llama_stack_responses.generation.context_lengths import ContextLengths
from llama_stack_responses.generation.event_buffer import Outbox
from llama_stack_responses.generation.fair_yield import Turnstile
from llama_stack_responses.generation.loop import NOTHING_DONE, Progress, Turn, TurnLimits
from llama_stack_responses.generation.model_round import Asking
from llama_stack_responses.generation.stop_point import Boundary
from llama_stack_responses.generation.token_counts import TokenCounts
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries
from llama_stack_responses.telemetry.telemetry import Telemetry
from llama_stack_responses.tools.toolset import Toolset
from tests.support.inference import FakeInference


def make_turn(
    request: CreateRequest,
    items: list[dict[str, Any]],
    *,
    toolset: Toolset,
    assembler: Assembler,
    inference: FakeInference,
    outbox: Outbox,
    limits: TurnLimits,
    profile: Profile | None = None,
    turnstile: Turnstile | None = None,
    progress: Progress = NOTHING_DONE,
    boundary: Boundary | None = None,
    after_step: Callable[[Progress], Awaitable[None]] | None = None,
) -> Turn:
    """The loop over `items`, by default as a model without a profile needs it."""
    profile = profile or Profile()
    summaries = PrivateSummaries(Sealer([bytes(SECRET_BYTES)]), ANONYMOUS)
    asking = Asking(
        request,
        profile=profile,
        toolset=toolset,
        inference=inference,
        fitting=Fitting(request.model, profile, TokenCounts(inference, [profile]), ContextLengths(inference)),
        outbox=outbox,
        idle_seconds=limits.idle_seconds,
        output_bytes=limits.output_bytes,
        turnstile=turnstile or Turnstile(),
        instructions=assembler.response["instructions"],
        read_summary=summaries.read,
    )
    return Turn(
        request,
        items,
        shown=continued(items, summaries.read),
        asking=asking,
        compacting=Compacting(
            request, sent=items, asking=asking, assembler=assembler, outbox=outbox, summaries=summaries
        ),
        toolset=toolset,
        assembler=assembler,
        outbox=outbox,
        limits=limits,
        telemetry=Telemetry(),
        progress=progress,
        boundary=boundary,
        after_step=after_step,
    )
