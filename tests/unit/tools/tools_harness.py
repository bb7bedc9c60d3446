"""A generation with tools of one kind, and its collaborators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from llama_stack_responses.core.exchanges import with_exchanges
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.registry import HostedToolServices, tool_makers
from tests.support.generation_harness import GenerationHarness
from tests.support.image_server import as_replayed
from tests.support.inference import Round, call, finish
from tests.support.strict import check_stream

Json = dict[str, Any]


def calls(*entries: tuple[str, Json]) -> Round:
    """Return a round in which the model makes these calls, `(name, arguments)`."""
    named = [(name, orjson.dumps(arguments).decode()) for name, arguments in entries]
    chunks = [call(name, f"c{number}", text, index=number) for number, (name, text) in enumerate(named)]
    return [*chunks, finish("tool_calls")]


class ToolsHarness(GenerationHarness):
    """Run one generation.

    Args:
        services: the services that the hosted tools use.

    Attributes:
        events: all emitted events.
        history: the conversation up to the end of the generation, as it is stored.
    """

    def __init__(self, services: Json, rounds: Sequence[Round], *, history: Sequence[Json] = (), **fields: Any) -> None:
        stack = HostedToolServices(**services)
        makers = tool_makers(stack)
        super().__init__(*rounds, makers=makers, history=history, **fields)
        self.events: list[Json] = []

    async def run(self) -> Json:
        """Run the generation and return the response, after checking its stream and its replay."""
        self.events = await self.end()
        transcript = Transcript()
        transcript.note(self.events)
        final = check_stream(self.events)
        assert list(replay(final, transcript.marks())) == as_replayed(self.events)
        check_stream(list(replay(final)))
        self.history = [*self.items, *with_exchanges(final["output"], self.generation.exchanges)]
        return final

    def offered(self, request: int = 0) -> dict[str, Json]:
        """Return the functions that the model received, by name."""
        tools = self.inference.requests[request].get("tools", [])
        return {tool["function"]["name"]: tool["function"] for tool in tools}
