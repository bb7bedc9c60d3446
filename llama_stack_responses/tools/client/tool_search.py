"""`tool_search`: the model, or the client, searches for tools before the model can see and call them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ...core.shapes import an_object, array, object_of, string
from ...core.types import Json
from ...items.kinds.tool_search import TOOL_SEARCH_CALL, TOOL_SEARCH_OUTPUT
from ...requests.request import CreateRequest
from ...stream.call_kinds import CallKind
from ..tool import FindsTools, Tool
from ..tool_function import Function, Invocation, Outcome, chat_function, validated_arguments
from .client_tool import an_object as object_schema

_NAME: Final = "tool_search"
_PATHS: Final = object_schema(
    {"paths": {"type": "array", "items": {"type": "string"}, "description": "Names of the tools or groups to load."}},
    "paths",
)
_QUERY: Final = object_schema({"query": {"type": "string", "description": "What the tool has to do."}}, "query")
_SEARCH: Final = object_of({"paths": array(string(1, 300), low=1)}, "paths")


def tool_search_tool(declared: Json, request: CreateRequest) -> Tool:
    """Create the tool of a `{type: tool_search, execution, description, parameters}` entry."""
    return ClientSearch(declared) if declared.get("execution") == "client" else ServerSearch(request.tools)


class ClientSearch(FindsTools):
    """A search that the client runs. The tools come with the output of the call."""

    def __init__(self, declared: Json) -> None:
        def fields(_: str, call_id: str) -> Json:
            return {"call_id": call_id, "execution": "client"}

        def whole(arguments: str) -> Json | None:
            value = validated_arguments(arguments, an_object)
            return None if value is None else {"arguments": value}

        description = declared.get("description") or "Finds tools that cannot be called yet."
        chat = chat_function(_NAME, description, declared.get("parameters") or _QUERY)
        self._functions = (Function(chat, CallKind(TOOL_SEARCH_CALL, fields, whole=whole)),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("tool_search",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [_NAME] if choice["type"] == "tool_search" else []

    def found(self) -> Sequence[Json]:
        """Return nothing: the found tools are in the conversation's items."""
        return ()


class ServerSearch(FindsTools):
    """A search by name. The model sees a list of all deferred tools, which is shorter than the tools themselves."""

    def __init__(self, declared: Sequence[Json]) -> None:
        self._deferred = [tool for tool in map(_deferred_part, declared) if tool]
        self._found: list[Json] = []

    def functions(self) -> Sequence[Function]:
        """Return the single function, or none if no tool is deferred."""
        if not self._deferred:
            return ()
        lines = [line for tool in self._deferred for line in _listed(tool)]
        description = "\n".join(["Loads tools that cannot be called before. There are:", *lines])
        kind = CallKind(TOOL_SEARCH_CALL, _fields, whole=_whole, hosted=True)
        return [Function(chat_function(_NAME, description, _PATHS), kind, self._run, repeatable=True)]

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("tool_search",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [_NAME] if choice["type"] == "tool_search" else []

    def found(self) -> Sequence[Json]:
        """Return the tools found by the searches since the last call."""
        found, self._found = self._found, []
        return found

    async def _run(self, invocation: Invocation) -> Outcome:
        paths = set((await invocation.arguments())["paths"])
        parts = [part for tool in self._deferred if (part := _part(tool, paths))]
        self._found += parts
        invocation.reporter.show(TOOL_SEARCH_OUTPUT, {"call_id": None, "execution": "server", "tools": parts})
        if not parts:
            return Outcome("There are no such tools. Use the names exactly as they are in the list.")
        return Outcome("The tools can be called now.")


def _fields(_: str, __: str) -> Json:
    return {"call_id": None, "execution": "server"}


def _whole(arguments: str) -> Json | None:
    value = validated_arguments(arguments, _SEARCH)
    return None if value is None else {"arguments": value}


def _deferred_part(tool: Json) -> Json | None:
    """Return the deferred part of a declared tool; None if there is none."""
    if tool["type"] != "namespace":
        return tool if tool.get("defer_loading") and "name" in tool else None
    members = [member for member in tool["tools"] if member.get("defer_loading")]
    return {**tool, "tools": members} if members else None


def _listed(tool: Json) -> Iterator[str]:
    yield f"- {tool['name']}: {tool.get('description', '')}"
    for member in tool.get("tools", ()):
        yield f"  - {tool['name']}.{member['name']}: {member.get('description', '')}"


def _part(tool: Json, paths: set[str]) -> Json | None:
    """Return the part of a tool that these paths select; None if there is none."""
    if tool["name"] in paths:
        return tool
    members = [member for member in tool.get("tools", ()) if f"{tool['name']}.{member['name']}" in paths]
    return {**tool, "tools": members} if members else None
