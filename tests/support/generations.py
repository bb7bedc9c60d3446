"""A generation without the factory that builds it in a server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from llama_stack_responses.admission import Reservation
from llama_stack_responses.chat.adaptation.schema_task import invalid
from llama_stack_responses.chat.inference import Inference
from llama_stack_responses.chat.profile import Profile, steps_of
from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.auto_compaction import AutoCompaction
from llama_stack_responses.generation.context_fit import ContextFit
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.held_output import HeldOutput
from llama_stack_responses.generation.loop import NOTHING_DONE, Generation, GenerationLimits, GenerationProgress
from llama_stack_responses.generation.model_round import ModelRound
from llama_stack_responses.generation.model_server_queues import ModelServerQueues
from llama_stack_responses.generation.request_adaptation import ModelServers
from llama_stack_responses.generation.shared_timer import SharedTimer
from llama_stack_responses.generation.stop_point import StopPoint
from llama_stack_responses.generation.token_counts import TokenCounts
from llama_stack_responses.items.compaction import continued
from llama_stack_responses.lifecycle.garbage import NewObjects
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries
from llama_stack_responses.store.learned_adaptations import LearnedSteps
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.toolset import Toolset
from tests.support.inference import FakeInference
from tests.support.reservations import unlimited


def model_servers(
    inference: Inference,
    profile: Profile | None = None,
    learned: LearnedSteps | None = None,
    clock: Callable[[], float] = time.time,
    telemetry: Telemetry | None = None,
) -> ModelServers:
    """Return what is known of the model server of a fake."""
    profile = profile or Profile()
    steps = steps_of(profile.parameters, profile.dialect)
    large_work = LargeWork()
    return ModelServers(inference, lambda *_: steps, "", learned, large_work, telemetry or Telemetry(), clock)


async def check_json(text: str, schema: dict[str, Any]) -> str:
    """Check an answer in this process."""
    return invalid(text, schema)


def make_generation(
    request: CreateRequest,
    items: list[dict[str, Any]],
    *,
    toolset: Toolset,
    assembler: Assembler,
    inference: FakeInference,
    event_buffer: EventBuffer,
    limits: GenerationLimits,
    profile: Profile | None = None,
    fair_yield: FairYield | None = None,
    progress: GenerationProgress = NOTHING_DONE,
    stop_point: StopPoint | None = None,
    after_step: Callable[[GenerationProgress], Awaitable[None]] | None = None,
    held: Reservation | None = None,
    servers: ModelServers | None = None,
    queues: ModelServerQueues | None = None,
) -> Generation:
    """Create a generation over `items`, by default for a model without a profile."""
    profile = profile or Profile()
    servers = servers or model_servers(inference, profile)
    held = held or unlimited()
    summaries = PrivateSummaries(Sealer([bytes(SECRET_BYTES)]), ANONYMOUS)
    large_work = LargeWork()
    model_round = ModelRound(
        request,
        profile=profile,
        toolset=toolset,
        inference=inference,
        servers=servers,
        queues=queues or ModelServerQueues(),
        check_json=check_json,
        context_fit=ContextFit(
            request.model,
            profile,
            TokenCounts(inference, [profile]),
            servers,
            large_work,
        ),
        event_buffer=event_buffer,
        idle_seconds=limits.idle_seconds,
        output_bytes=limits.output_bytes,
        output=HeldOutput(held),
        fair_yield=fair_yield or FairYield(),
        timer=SharedTimer(),
        new_objects=NewObjects(),
        instructions=assembler.response["instructions"],
    )
    return Generation(
        request,
        items,
        model_items=continued(items, summaries.read),
        held=held,
        model_round=model_round,
        auto_compaction=AutoCompaction(
            request,
            sent=items,
            model_round=model_round,
            assembler=assembler,
            event_buffer=event_buffer,
            summaries=summaries,
            large_work=large_work,
        ),
        toolset=toolset,
        assembler=assembler,
        event_buffer=event_buffer,
        limits=limits,
        telemetry=Telemetry(),
        progress=progress,
        stop_point=stop_point,
        after_step=after_step,
    )
