"""Metrics: names, units and buckets, those of OpenTelemetry's GenAI conventions where they exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.metrics import Histogram, Meter

_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_SECONDS_TO_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_SECONDS_OF_STORE: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SECONDS_OF_QUEUE: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_SECONDS_OF_LOOP: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOKENS: Final = tuple(4**power for power in range(14))


class Instruments:
    """The instruments of one meter.

    Attributes:
        tokens: tokens of a model round, by `gen_ai.token.type`.
        operation: duration of a model round or a tool call.
        first_chunk: time from a model round's request to its first chunk.
        request: duration of a response.
        first_token: time from a response's start to the first chunk of a model.
        queue: time that a background response waited in the queue.
        store: duration of a call of the store.
        loop_delay: lateness of the event loop's heartbeats.
        adaptations: number of changed chat requests that were sent after refusals.
        loop_blocks: number of times that the event loop was blocked beyond the threshold.
    """

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str, buckets: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets)

        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of a model round",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self.operation = seconds("gen_ai.client.operation.duration", "Time of a model round or a tool call", _SECONDS)
        self.first_chunk = seconds(
            "gen_ai.client.operation.time_to_first_chunk", "Time to a model round's first chunk", _SECONDS_TO_FIRST
        )
        self.request = seconds("gen_ai.server.request.duration", "Time of a response", _SECONDS)
        self.first_token = seconds(
            "gen_ai.server.time_to_first_token", "Time to a response's first output", _SECONDS_TO_FIRST
        )
        self.queue = seconds(
            "llama_stack_responses.queue.duration", "Time that a background response waited", _SECONDS_OF_QUEUE
        )
        self.store = seconds("llama_stack_responses.store.duration", "Time of a call of the store", _SECONDS_OF_STORE)
        self.loop_delay = seconds(
            "llama_stack_responses.event_loop.delay", "Lateness of a timer in the event loop", _SECONDS_OF_LOOP
        )
        self.adaptations = meter.create_counter(
            "llama_stack_responses.model_server.adaptations",
            "{adaptation}",
            "Changes of chat requests that model servers refused",
        )
        self.loop_blocks = meter.create_counter(
            "llama_stack_responses.event_loop.holds", "{hold}", "Times that the event loop was blocked for too long"
        )
