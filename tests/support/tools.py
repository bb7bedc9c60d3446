"""A scripted hosted tool in this process.

    tools = FakeTools()
    makers = {"web_search": tools.make}
    tools.answers["lookup"] = [Outcome("42"), ToolError("no"), asyncio.Event(), ...]

The model calls it as `lookup`; its calls become `web_search_call` items.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

import orjson

from llama_stack_responses.items.registry import HOSTED_TOOL_NAMES
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.stream.call_kinds import FORMS, CallKind, no_fields
from llama_stack_responses.tools.tool_function import Function, Invocation, Outcome, ToolError, chat_function

type Json = dict[str, Any]
type Answer = Outcome | Exception | asyncio.Event

_NAMES: Final = frozenset(name for name, of in HOSTED_TOOL_NAMES.items() if of == "web_search")


def _action(arguments: str) -> Json | None:
    try:
        return {"action": {"type": "search", "query": str(orjson.loads(arguments)["query"])}}
    except (ValueError, KeyError, TypeError):
        return None


class FakeTools:
    """The factory of the tool, which answers its calls in order.

    Args:
        answers: outcomes, errors to raise, or events to await before the next answer.
        repeatable: whether a call may be repeated.

    Attributes:
        answers: the remaining answers.
        ran: arguments of all calls.
        begun: a semaphore released once per started call.
    """

    def __init__(self, *answers: Answer, repeatable: bool = False) -> None:
        self.ran: list[Json] = []
        self.begun = asyncio.Semaphore(0)
        self.answers = list(answers)
        self._repeatable = repeatable

    def make(self, _: Json, __: CreateRequest) -> "FakeTool":
        """Create the tool for an entry of a request."""
        return FakeTool(self, self._repeatable)

    async def run(self, invocation: Invocation) -> Outcome:
        """Answer a call."""
        self.ran.append(await invocation.arguments())
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
        kind = CallKind(FORMS["web_search_call"], no_fields, whole=_action, hosted=True)
        chat = chat_function("lookup", "Looks it up.", {"type": "object", "properties": {"query": {"type": "string"}}})
        self._functions = (Function(chat, kind, tools.run, repeatable=repeatable),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handles of its types."""
        return _NAMES

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names its type."""
        return ["lookup"] if choice["type"] in _NAMES else []


__all__ = ["FakeTool", "FakeTools", "Outcome", "ToolError"]
