"""A turn with tools of one kind, and everything around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.assembler import Assembler
from llama_stack_responses.core.exchanges import with_exchanges
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.replay import replay
from llama_stack_responses.core.request import parse_create
from llama_stack_responses.core.response import new_response
from llama_stack_responses.core.transcript import Transcript
from llama_stack_responses.outbox import Outbox
from llama_stack_responses.tools.registry import Services, tool_makers
from llama_stack_responses.tools.toolset import Toolset
from llama_stack_responses.turn import Turn, TurnLimits
from tests.support.inference import FakeInference, Round, call, finish
from tests.support.strict import check_stream

Json = dict[str, Any]

ENOUGH = TurnLimits(rounds=8, idle_seconds=30.0, tool_seconds=30.0)


def calls(*made: tuple[str, Json]) -> Round:
    """A round in which the model makes these calls, `(name, arguments)`."""
    named = [(name, orjson.dumps(arguments).decode()) for name, arguments in made]
    chunks = [call(name, f"c{number}", text, index=number) for number, (name, text) in enumerate(named)]
    return [*chunks, finish("tool_calls")]


async def _no_file(file_id: str) -> tuple[str, bytes]:
    raise AssertionError(f"there is no file {file_id}")


class Setting:
    """Runs one turn.

    Attributes:
        events: all that went out.
        response: the response at its end.
        history: the conversation behind the turn, as it is stored.
    """

    def __init__(self, services: Json, rounds: Sequence[Round], *, history: Sequence[Json] = (), **fields: Any) -> None:
        self.request = parse_create({"model": "m", "input": "hi", "stream": True, **fields})
        self.inference = FakeInference(*rounds)
        self.events: list[Json] = []
        self._services = Services(who=lambda: ANONYMOUS, uploaded=_no_file, **services)
        self._items = [*history, *self.request.input_items]

    async def run(self) -> Json:
        """The response; its stream and what is made of it later pass the judges."""
        toolset = Toolset(self.request, tool_makers(self._services))
        response = new_response(self.request, id="resp_1", created_at=1)
        assembler = Assembler(response, toolset.kind_of, show_logprobs=self.request.wants_logprobs)
        outbox = Outbox(wanted=True)
        outbox.put(assembler.start())
        turn = Turn(
            self.request,
            self._items,
            {},
            profile=Profile(),
            toolset=toolset,
            assembler=assembler,
            inference=self.inference,
            outbox=outbox,
            limits=ENOUGH,
        )
        ending = await turn.run()
        assembler.settle(ending.status, completed_at=2)
        outbox.put(assembler.end())
        self.events = outbox.ready()
        transcript = Transcript()
        transcript.note(self.events)
        final = check_stream(self.events)
        assert list(replay(final, transcript.marks())) == self.events
        check_stream(list(replay(final)))
        self.history = [*self._items, *with_exchanges(final["output"], turn.exchanges)]
        return final

    def told(self, request: int = -1) -> list[str]:
        """What the model was told of calls."""
        messages = self.inference.requests[request]["messages"]
        return [message["content"] for message in messages if message["role"] == "tool"]

    def offered(self, request: int = 0) -> dict[str, Json]:
        """The functions that the model saw, by name."""
        tools = self.inference.requests[request].get("tools", [])
        return {tool["function"]["name"]: tool["function"] for tool in tools}
