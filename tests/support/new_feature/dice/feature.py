"""The tool, which every stack has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from secrets import randbelow
from typing import Final

import orjson

from llama_stack_responses.core.types import Json
from llama_stack_responses.feature import Feature, Stack
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.stream.call_kinds import CallKind, no_fields
from llama_stack_responses.tools.registry import HostedTool
from llama_stack_responses.tools.tool_function import Function, Invocation, Outcome, chat_function

from .kinds import FORM

_FUNCTION: Final = chat_function(
    "dice",
    "Rolls a die.",
    {"type": "object", "properties": {"sides": {"type": "integer", "minimum": 2}}, "required": ["sides"]},
)


class Dice:
    """The tool of one response, with a single function."""

    def __init__(self, _declared: Json, _request: CreateRequest) -> None:
        self._kind = CallKind(FORM, no_fields, whole=_sides, hosted=True)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return (Function(_FUNCTION, self._kind, _roll),)

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("dice",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return ["dice"] if choice["type"] == "dice" else []


async def _roll(invocation: Invocation) -> Outcome:
    rolled = 1 + randbelow(invocation.item["sides"])
    return Outcome(str(rolled), {"rolled": rolled})


def _sides(arguments: str) -> Json | None:
    try:
        sides = orjson.loads(arguments)["sides"]
    except (ValueError, KeyError, TypeError):
        return None
    return {"sides": sides} if isinstance(sides, int) and sides > 1 else None


def open_feature(_: Stack) -> Feature:
    """Return the tool."""
    return Feature(tools={"dice": HostedTool(Dice)})
