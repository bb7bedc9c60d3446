"""A generation in this process, with its collaborators.

harness = GenerationHarness([CALL, finish("tool_calls")], ANSWER, makers={"web_search": tools.make}, tools=[SEARCH])
events = await harness.end()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llama_stack_responses.admission import Reservation
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import NOTHING_DONE, Ending, GenerationLimits, GenerationProgress
from llama_stack_responses.generation.request_adaptation import ModelServers
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Makers, Toolset
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Round

type Json = dict[str, Any]

COMPLETED: Final = Ending("completed")
ENOUGH: Final = GenerationLimits(8, 30.0, 30.0)


class GenerationHarness:
    """A generation of one response.

    Args:
        rounds: the model's rounds.
        makers: the available hosted tools.
        history: the items before the input.
        inference: the model, if it must do more than play the rounds.
        servers: what is known of model servers; by default, nothing.
        held: counts what the generation holds; by default, without a limit.
        fields: fields of the request.

    Attributes:
        items: the history and the input.
    """

    def __init__(
        self,
        *rounds: Round,
        makers: Makers,
        history: Sequence[Json] = (),
        profile: Profile | None = None,
        limits: GenerationLimits = ENOUGH,
        progress: GenerationProgress = NOTHING_DONE,
        inference: FakeInference | None = None,
        held: Reservation | None = None,
        servers: ModelServers | None = None,
        **fields: Any,
    ) -> None:
        request = parse_create({"model": "m", "input": "hi", "stream": True, **fields})
        self.items = [*history, *request.input_items]
        self.inference = inference or FakeInference(*rounds)
        self.event_buffer = EventBuffer(wanted=True)
        self.steps: list[GenerationProgress] = []
        toolset = Toolset(request, {**client_tools(), **makers}, servers=limits.servers)
        response = new_response(request, id="resp_1", created_at=1)
        self.assembler = Assembler(response, toolset.kind_of, show_logprobs=request.wants_logprobs)
        self.event_buffer.put(self.assembler.start())
        self.generation = make_generation(
            request,
            self.items,
            profile=profile,
            toolset=toolset,
            assembler=self.assembler,
            inference=self.inference,
            event_buffer=self.event_buffer,
            limits=limits,
            progress=progress,
            after_step=self.note,
            held=held,
            servers=servers,
        )

    async def note(self, progress: GenerationProgress) -> None:
        """Record the progress after each step."""
        self.steps.append(
            GenerationProgress(progress.rounds, list(progress.new_items), progress.waiting, progress.ends)
        )

    async def end(self) -> list[Json]:
        """Run the generation and return all events."""
        ending = await self.generation.run()
        assert ending == COMPLETED
        self.assembler.set_outcome("completed", completed_at=2)
        self.event_buffer.put(self.assembler.end())
        return self.event_buffer.ready()

    def tool_outputs(self, request: int = -1) -> list[Any]:
        """Return the outputs of calls in a request to the model."""
        messages = self.inference.requests[request]["messages"]
        return [message["content"] for message in messages if message["role"] == "tool"]
