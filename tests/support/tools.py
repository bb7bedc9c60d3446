"""A hosted tool in this process that does what it is told.

    tools = FakeTools()
    makers = {"web_search": tools.make}
    tools.answers["lookup"] = [Outcome("42"), ToolError("no"), asyncio.Event(), ...]

The model calls it by the name `lookup`; its calls are `web_search_call` items.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import orjson

from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.core.schema.search_tools import WEB_SEARCH_TYPES
from llama_stack_responses.core.stream.calls import WEB_SEARCH_CALL, CallKind
from llama_stack_responses.tools.tool import Function, Invocation, Outcome, ToolError, chat_function

type Json = dict[str, Any]
type Answer = Outcome | Exception | asyncio.Event


def _no_fields(name: str, call_id: str) -> Json:
    return {}


def _action(arguments: str) -> Json | None:
    try:
        return {"action": {"type": "search", "query": str(orjson.loads(arguments)["query"])}}
    except (ValueError, KeyError, TypeError):
        return None


class FakeTools:
    """Makes the tool, and answers its calls in the order in which they come.

    Args:
        answers: an outcome, an error to raise, or an event to wait for before the next one is given.
        repeatable: whether a call may be run twice.

    Attributes:
        answers: those that are still to be given.
        ran: the arguments of all calls that were run.
        begun: can be acquired once for each call that began.
    """

    def __init__(self, *answers: Answer, repeatable: bool = False) -> None:
        self.ran: list[Json] = []
        self.begun = asyncio.Semaphore(0)
        self.answers = list(answers)
        self._repeatable = repeatable

    def make(self, _: Json, __: CreateRequest) -> "FakeTool":
        """The tool, for an entry of a request."""
        return FakeTool(self, self._repeatable)

    async def run(self, invocation: Invocation) -> Outcome:
        """Answers a call."""
        self.ran.append(invocation.arguments())
        self.begun.release()
        invocation.advance("searching")
        answer = self.answers.pop(0)
        while isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeTool:
    """The tool of one response."""

    def __init__(self, tools: FakeTools, repeatable: bool) -> None:
        kind = CallKind(WEB_SEARCH_CALL, _no_fields, whole=_action, hosted=True)
        chat = chat_function("lookup", "Looks it up.", {"type": "object", "properties": {"query": {"type": "string"}}})
        self._functions = (Function(chat, kind, tools.run, repeatable=repeatable),)

    def functions(self) -> Sequence[Function]:
        """The one function."""
        return self._functions

    def chosen(self, choice: Json) -> Collection[str]:
        """It is chosen by its type."""
        return ["lookup"] if choice["type"] in WEB_SEARCH_TYPES else []


__all__ = ["FakeTool", "FakeTools", "Outcome", "ToolError"]
