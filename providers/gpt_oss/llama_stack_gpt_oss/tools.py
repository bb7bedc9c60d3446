"""The tools of a request, in the shapes that Harmony knows: functions of the developer, and the model's built-ins."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest

BROWSER = frozenset({"browser.search", "browser.open", "browser.find"})
MOST_SHOWN = 1 << 20
"""Characters that the schemas of a request's tools may come to, their references written out, at most."""
_DEEPEST = 64
"""References within references that are written out."""
_LEVEL = 64
"""Characters that a level of a schema counts for at least."""
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
        """Whether the model was trained on it, and knows it without being told."""
        return self.name in BROWSER or self.name == PYTHON

    @property
    def recipient(self) -> str:
        """Whom the model addresses to call it."""
        return self.name if self.built_in else FUNCTIONS + self.name

    @property
    def code_argument(self) -> str | None:
        """`python` takes bare code instead of JSON: the name of the argument that carries it."""
        if self.name != PYTHON:
            return None
        return next(iter((self.parameters or {}).get("properties") or {}), "code")


def read_tools(raw: Sequence[Json] | None) -> tuple[Tool, ...]:
    """The `tools` of a chat request; InvalidRequest for what is not a function."""
    return tuple(_tool(entry, number) for number, entry in enumerate(raw or ()))


def _tool(entry: Json, number: int) -> Tool:
    function = entry.get("function")
    if entry.get("type", "function") != "function" or not isinstance(function, Mapping) or not function.get("name"):
        raise InvalidRequest("gpt-oss takes tools of type function with a name", param=f"tools[{number}]")
    return Tool(
        name=str(function["name"]),
        description=str(function.get("description") or ""),
        parameters=function.get("parameters") or None,
        strict=bool(function.get("strict")),
    )


def called(recipient: str, tools: Sequence[Tool]) -> str | None:
    """The function that a message to `recipient` calls; None if it is none, as with `assistant` or a garbled name.

    The model at times leaves out `functions.`; and it may make up a function, which is for the client to refuse.
    """
    offered = {tool.name for tool in tools}
    name = recipient.removeprefix(FUNCTIONS)
    if name in offered or (name and recipient.startswith(FUNCTIONS)):
        return name
    return None


def to_arguments(tool: Tool | None, content: str) -> str:
    """What the model wrote to a tool, as the JSON arguments of a chat call."""
    if tool is None or tool.code_argument is None:
        return content
    return json.dumps({tool.code_argument: content}, ensure_ascii=False)


def from_arguments(tool: Tool | None, arguments: str) -> str:
    """The reverse: `python` is shown its own code again."""
    if tool is None or tool.code_argument is None:
        return arguments
    try:
        code = json.loads(arguments)[tool.code_argument]
    except (ValueError, KeyError, TypeError):
        return arguments
    return code if isinstance(code, str) else arguments


@dataclass(slots=True)
class Room:
    """The characters that schemas may still come to."""

    left: int = MOST_SHOWN

    def take(self, level: Json) -> None:
        """Counts one level of a schema; InvalidRequest when there is no room for it."""
        values = level.get("enum")
        texts = [level.get("description"), *(values if isinstance(values, Sequence) else ()), *level]
        self.left -= _LEVEL + sum(len(text) for text in texts if isinstance(text, str))
        if self.left < 0:
            message = f"The schemas of the tools have more than {MOST_SHOWN} characters with references written out."
            raise InvalidRequest(f"{message} Use fewer references to references.", param="tools")


def shown(schema: Json, room: Room) -> dict[str, Any]:
    """A JSON schema in the words that Harmony's renderer knows.

    It writes out neither references nor `anyOf`, asks every `enum` for its type, and lets the second line of a
    description fall out of its comment.

    InvalidRequest: written out, it would be too long; references to references double it with each step.
    """
    return _shown(schema, schema, (), room)


def _shown(schema: Any, root: Json, path: tuple[str, ...], room: Room) -> dict[str, Any]:
    """`path` holds the references that led here: a loop, and what is nested too deeply, is shown as any value."""
    if not isinstance(schema, Mapping):
        return {}
    room.take(schema)
    found = dict(schema)
    found.pop("$defs", None)
    reference = found.pop("$ref", "")
    if reference in path or len(path) == _DEEPEST:
        return {}
    if isinstance(reference, str) and reference:
        return _shown({**_target(reference, root), **found}, root, (*path, reference), room)
    _reword(found)
    if isinstance(found.get("oneOf"), Sequence):
        found["oneOf"] = [_shown(option, root, path, room) for option in found["oneOf"]]
    if "items" in found:
        found["items"] = _shown(found["items"], root, path, room)
    if isinstance(found.get("properties"), Mapping):
        found["properties"] = {name: _shown(each, root, path, room) for name, each in found["properties"].items()}
    return found


def _reword(found: dict[str, Any]) -> None:
    """The keywords of one level, in place."""
    if "anyOf" in found:
        found.setdefault("oneOf", found.pop("anyOf"))
    if isinstance(options := found.get("oneOf"), Sequence) and all(_is_plain(option) for option in options):
        found["type"] = [option["type"] for option in found.pop("oneOf")]
    if "const" in found:
        found.setdefault("enum", [found.pop("const")])
    if isinstance(values := found.get("enum"), Sequence) and all(isinstance(value, str) for value in values):
        found.setdefault("type", "string")
    if isinstance(found.get("description"), str):
        found["description"] = found["description"].replace("\n", "\n// ")


def _is_plain(option: Any) -> bool:
    """Whether it names a type and nothing more, such as the null of an optional value."""
    return isinstance(option, Mapping) and option.keys() <= {"type", "title"} and isinstance(option.get("type"), str)


def _target(reference: str, root: Json) -> Json:
    place: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else {}
