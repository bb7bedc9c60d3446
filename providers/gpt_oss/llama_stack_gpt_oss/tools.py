"""The tools of a request, as Harmony represents them: developer functions, and the model's built-in tools."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest

BROWSER = frozenset({"browser.search", "browser.open", "browser.find"})
MAX_SCHEMA_CHARACTERS = 1 << 20
"""Maximum total length of a request's tool schemas, with references expanded, in characters."""
_DEEPEST = 64
"""Maximum nesting of references."""
_LEVEL_CHARACTERS = 64
"""Minimum number of characters that a level of a schema counts as."""
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


def _tool(entry: Json, number: int) -> Tool:
    function = entry.get("function")
    if entry.get("type", "function") != "function" or not isinstance(function, Mapping) or not function.get("name"):
        raise InvalidRequest("gpt-oss takes tools of type function with a name", param=f"tools[{number}]")
    parameters = function.get("parameters") or None
    if not isinstance(parameters, Mapping | None):
        raise InvalidRequest("The parameters of a function are an object", param=f"tools[{number}].function.parameters")
    return Tool(
        name=str(function["name"]),
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


@dataclass(slots=True)
class SchemaBudget:
    """The characters left for tool schemas."""

    left: int = MAX_SCHEMA_CHARACTERS

    def spend(self, level: Json) -> None:
        """Count one level of a schema; InvalidRequest if it exceeds the limit."""
        values = level.get("enum")
        texts = [level.get("description"), *(values if isinstance(values, Sequence) else ()), *level]
        self.left -= _LEVEL_CHARACTERS + sum(len(text) for text in texts if isinstance(text, str))
        if self.left < 0:
            message = f"The schemas of the tools exceed {MAX_SCHEMA_CHARACTERS} characters with references written out."
            raise InvalidRequest(f"{message} Use fewer references to references.", param="tools")


def reduced(schema: Json, budget: SchemaBudget) -> dict[str, Any]:
    """Convert a JSON schema to the subset that Harmony's renderer supports.

    The renderer does not expand references or `anyOf`, requires a type with each `enum`, and puts only the first line
    of a description in its comment.

    InvalidRequest: the expanded schema is too long; nested references can double it at each level.
    """
    return _reduced(schema, schema, (), budget)


def _reduced(schema: Any, root: Json, path: tuple[str, ...], budget: SchemaBudget) -> dict[str, Any]:
    """Convert one level. `path` has the references that led here: cycles and deep nesting become any value."""
    if not isinstance(schema, Mapping):
        return {}
    budget.spend(schema)
    reduced = dict(schema)
    reduced.pop("$defs", None)
    reference = reduced.pop("$ref", "")
    if reference in path or len(path) == _DEEPEST:
        return {}
    if isinstance(reference, str) and reference:
        return _reduced({**_target(reference, root), **reduced}, root, (*path, reference), budget)
    _reword(reduced)
    if isinstance(reduced.get("oneOf"), Sequence):
        reduced["oneOf"] = [_reduced(option, root, path, budget) for option in reduced["oneOf"]]
    if "items" in reduced:
        reduced["items"] = _reduced(reduced["items"], root, path, budget)
    if isinstance(reduced.get("properties"), Mapping):
        reduced["properties"] = {
            name: _reduced(each, root, path, budget) for name, each in reduced["properties"].items()
        }
    return reduced


def _reword(reduced: dict[str, Any]) -> None:
    """Convert the keywords of one level, in place."""
    if "anyOf" in reduced:
        reduced.setdefault("oneOf", reduced.pop("anyOf"))
    if isinstance(options := reduced.get("oneOf"), Sequence) and all(_is_plain(option) for option in options):
        reduced["type"] = [option["type"] for option in reduced.pop("oneOf")]
    if "const" in reduced:
        reduced.setdefault("enum", [reduced.pop("const")])
    if isinstance(values := reduced.get("enum"), Sequence) and all(isinstance(value, str) for value in values):
        reduced.setdefault("type", "string")
    if isinstance(reduced.get("description"), str):
        reduced["description"] = reduced["description"].replace("\n", "\n// ")


def _is_plain(option: Any) -> bool:
    """Whether it has only a type, such as the null of an optional value."""
    return isinstance(option, Mapping) and option.keys() <= {"type", "title"} and isinstance(option.get("type"), str)


def _target(reference: str, root: Json) -> Json:
    target: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target if isinstance(target, Mapping) else {}
