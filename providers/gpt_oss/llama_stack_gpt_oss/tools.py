"""The tools of a request, as Harmony represents them: developer functions, and the model's built-in tools."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest

BROWSER = frozenset({"browser.search", "browser.open", "browser.find"})
MAX_NAME = 256  # characters
PYTHON = "python"
FUNCTIONS = "functions."
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of a chat request."""

    name: str
    description: str
    parameters: Json | None
    strict: bool

    @property
    def built_in(self) -> bool:
        """Whether the model was trained on it, and knows it without a description."""
        return self.name in BROWSER or self.name == PYTHON

    @property
    def recipient(self) -> str:
        """The recipient of messages that call it."""
        return self.name if self.built_in else FUNCTIONS + self.name

    @property
    def code_argument(self) -> str | None:
        """The argument for bare code, which `python` takes instead of JSON; None for other tools."""
        if self.name != PYTHON:
            return None
        return next(iter((self.parameters or {}).get("properties") or {}), "code")


def read_tools(raw: Sequence[Json] | None) -> tuple[Tool, ...]:
    """Parse the `tools` of a chat request; InvalidRequest for anything but functions."""
    return tuple(_tool(entry, number) for number, entry in enumerate(raw or ()))


def check_name(name: str, param: str) -> str:
    """Return the name of a function; InvalidRequest if it is too long."""
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"The name of a function has at most {MAX_NAME} characters", param=param)
    return name


def _tool(entry: Json, number: int) -> Tool:
    function = entry.get("function")
    if entry.get("type", "function") != "function" or not isinstance(function, Mapping) or not function.get("name"):
        raise InvalidRequest("gpt-oss takes tools of type function with a name", param=f"tools[{number}]")
    parameters = function.get("parameters") or None
    if not isinstance(parameters, Mapping | None):
        raise InvalidRequest("The parameters of a function are an object", param=f"tools[{number}].function.parameters")
    return Tool(
        name=check_name(str(function["name"]), f"tools[{number}].function.name"),
        description=str(function.get("description") or ""),
        parameters=parameters,
        strict=bool(function.get("strict")),
    )


def called(recipient: str, tools: Sequence[Tool]) -> str | None:
    """Return the function that a message to `recipient` calls; None for other recipients, also garbled ones.

    The model sometimes omits `functions.`, or calls an unknown function, which the client must reject.
    """
    offered = {tool.name for tool in tools}
    name = recipient.removeprefix(FUNCTIONS)
    if name in offered or (name and recipient.startswith(FUNCTIONS)):
        return name
    return None


def to_arguments(tool: Tool | None, content: str) -> str:
    """Convert the model's text for a tool to the JSON arguments of a chat call."""
    if tool is None or tool.code_argument is None:
        return content
    return json.dumps({tool.code_argument: content}, ensure_ascii=False)


def from_arguments(tool: Tool | None, arguments: str) -> str:
    """Convert JSON arguments to the text for a tool: the bare code for `python`."""
    if tool is None or tool.code_argument is None:
        return arguments
    try:
        code = json.loads(arguments)[tool.code_argument]
    except (ValueError, KeyError, TypeError):
        return arguments
    return code if isinstance(code, str) else arguments
