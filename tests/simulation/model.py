"""The model server and the tool of a simulation. A response's input says what they do: `job 7: 3 rounds, 1 calls`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import cache, partial
from typing import Any, Final

from llama_stack_responses.chat.inference import Extender, ModelServer, Receive
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.logs import known
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.tools.tool_function import Invocation, Outcome
from tests.simulation.faults import Faults
from tests.simulation.ledger import Ledger
from tests.simulation.world import Process
from tests.support.inference import call, finish, text
from tests.support.tools import FakeTool, FakeTools

type Json = dict[str, Any]

_JOB: Final = re.compile(r"job (\d+): (\d+) rounds, (\d+) calls")


def numbers_of(content: str) -> list[int]:
    """Return the numbers of the jobs that are in a text."""
    return [int(number) for number, _, _ in _JOB.findall(content)]


def asked(number: int, rounds: int, calls: int) -> str:
    """Return the input of a response whose model takes some rounds, each but the last with some calls."""
    return f"job {number}: {rounds} rounds, {calls} calls"


# A chunk takes as long to make as all that is done with it.
_text: Final = cache(text)
_finish: Final = cache(partial(finish, tokens=7))


class SimulatedModel:
    """The model server, as one server reaches it.

    Args:
        process: the server.
        ledger: is told of each round.
        faults: how often it fails.
        pause: seconds between two chunks at most.
    """

    def __init__(self, process: Process, ledger: Ledger, faults: Faults, pause: float) -> None:
        self._process, self._ledger, self._faults, self._pause = process, ledger, faults, pause

    async def open_stream(
        self, request: Json, receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Accept a request."""
        await self._wait()
        if self._fails():
            raise ApiError(503, "The model server is busy.", retry_after=1)
        return self._stream(request["messages"])

    async def check_model(self, model: str) -> None:
        """Accept every model."""

    async def count_tokens(self, request: Json) -> int | None:
        """Return that it cannot count."""
        return None

    async def context_length(self, model: str) -> int | None:
        """Return that it is unknown."""
        return None

    async def server_of(self, model: str) -> ModelServer | None:
        """Return the same server for all models."""
        return ModelServer("simulated")

    async def health(self, seconds: float) -> dict[str, bool | None]:
        """Return that it is healthy."""
        return {"simulated": True}

    def to_api_error(self, error: Exception) -> ApiError:
        """Return the error itself."""
        return error if isinstance(error, ApiError) else ApiError(502, str(error))

    async def _stream(self, messages: list[Json]) -> AsyncGenerator[Any]:
        newest = max(index for index, each in enumerate(messages) if each["role"] == "user")
        number, rounds, calls = map(int, _JOB.findall(str(messages[newest]["content"]))[-1])
        this = 1 + sum(each["role"] == "assistant" and bool(each.get("tool_calls")) for each in messages[newest:])
        self._process.log(f"asks the model for round {this} of {rounds} of job {number}")
        users = [str(each["content"]) for each in messages if each["role"] == "user"]
        self._ledger.on_prompt(number, numbers_of(" ".join(users)))
        self._ledger.on_round(self._process.name, known("response_id") or "", this)
        for piece in ("Round ", f"{this} of job {number}", " is said."):
            await self._wait()
            if self._fails():
                raise ApiError(502, "The model server has broken off.")
            yield _text(piece)
        if this < rounds:
            for index in range(calls):
                query = f'{{"query": "round {this} of job {number}"}}'
                yield call("lookup", f"call_{number}{index}_{this}", query, index=index)
            yield _finish("tool_calls")
        else:
            yield _finish("stop")

    async def _wait(self) -> None:
        await asyncio.sleep(self._process.world.random.uniform(0.0, self._pause))

    def _fails(self) -> bool:
        return self._process.world.random.random() < self._faults.model_fails / 4


class SimulatedTools(FakeTools):
    """The tool of one server, whose calls take a while.

    Args:
        process: the server.
        ledger: is told of each call.
        pause: seconds that a call takes at most.
    """

    def __init__(self, process: Process, ledger: Ledger, pause: float) -> None:
        super().__init__()
        self._process, self._ledger, self._pause = process, ledger, pause

    def make(self, _: Json, __: CreateRequest) -> FakeTool:
        """Create the tool for an entry of a request."""
        return FakeTool(self, repeatable=True)

    async def run(self, invocation: Invocation) -> Outcome:
        """Answer a call."""
        call_id = invocation.call.call_id
        self._process.log(f"runs {call_id}")
        self._ledger.on_call(self._process.name, known("response_id") or "", call_id)
        await asyncio.sleep(self._process.world.random.uniform(0.0, self._pause))
        return Outcome(f"The answer to {call_id}.")
