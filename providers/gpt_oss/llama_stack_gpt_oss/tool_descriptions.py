"""The tools of a request as text, in the model's TypeScript-like notation.

Harmony's renderer makes it. It holds Python's lock, and its time grows with the square of a word's length, so it gets a
few tools at a time, and both are bounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from openai_harmony import DeveloperContent, HarmonyEncoding, Message, Role, ToolDescription

from .errors import InvalidRequest
from .tools import Tool
from .word_lengths import check_words

MAX_CHARACTERS: Final = 1 << 20
"""Maximum total length of a request's tools, with references expanded, in characters."""
MAX_TOOL_CHARACTERS: Final = 1 << 16
"""The same for one tool."""
_TOGETHER: Final = 1 << 12
"""Characters from which on no further tool is rendered together with the ones before."""
_DEEPEST: Final = 64
"""Maximum nesting of references."""
_LEVEL_CHARACTERS: Final = 64
"""Minimum number of characters that a level of a schema counts as."""
_BEFORE: Final = "# Tools\n\n## functions\n\nnamespace functions {\n\n"
_AFTER: Final = "\n\n} // namespace functions"
Json = Mapping[str, Any]


def described(tools: Sequence[Tool], encoding: HarmonyEncoding) -> str:
    """Return the section of the developer message. InvalidRequest: the tools are too long, or cannot be written."""
    rendered = "\n\n".join(_rendered(group, encoding) for group in _groups(tools))
    return f"{_BEFORE}{rendered}{_AFTER}"


def _rendered(tools: Sequence[ToolDescription], encoding: HarmonyEncoding) -> str:
    message = Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_function_tools(tools))
    try:
        tokens = encoding.render(message)
    except ValueError as error:  # half a surrogate pair, or deep nesting
        raise InvalidRequest(f"The tools cannot be written as a gpt-oss prompt: {error}", param="tools") from error
    # Around the text are `<|start|>developer<|message|>` and `<|end|>`.
    return encoding.decode_utf8(tokens[3:-1]).removeprefix(_BEFORE).removesuffix(_AFTER)


def _groups(tools: Sequence[Tool]) -> Iterator[list[ToolDescription]]:
    """Yield the tools in groups that are rendered together."""
    budget = SchemaBudget()
    group: list[ToolDescription] = []
    together = total = 0
    for tool in tools:
        description = _description(tool, budget)
        characters = _characters([tool.name, tool.description, description.parameters])
        together, total = together + characters, total + characters
        _check(tool, description, characters, total)
        group.append(description)
        if together >= _TOGETHER:
            yield group
            group, together = [], 0
    if group:
        yield group


def _description(tool: Tool, budget: "SchemaBudget") -> ToolDescription:
    parameters = reduced(tool.parameters, budget) if tool.parameters and tool.parameters.get("properties") else None
    return ToolDescription.new(tool.name, tool.description, parameters=parameters)


def _check(tool: Tool, description: ToolDescription, characters: int, total: int) -> None:
    """Raise InvalidRequest if a tool, or all tools so far, would hold the lock for long."""
    if characters > MAX_TOOL_CHARACTERS:
        raise InvalidRequest(
            f"The tool {tool.name!r} has more than {MAX_TOOL_CHARACTERS:,} characters: shorten its description or its"
            " schema",
            param="tools",
        )
    if total > MAX_CHARACTERS:
        raise InvalidRequest(f"The tools have more than {MAX_CHARACTERS:,} characters: use fewer tools", param="tools")
    check_words([tool.description, description.parameters], "tools")


def _characters(value: Any) -> int:
    """Return about the length of a value in JSON."""
    if isinstance(value, Mapping):
        return sum(len(key) + _characters(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else len(str(value))


@dataclass(slots=True)
class SchemaBudget:
    """The characters left for the schemas of tools."""

    left: int = MAX_CHARACTERS

    def spend(self, level: Json) -> None:
        """Count one level of a schema; InvalidRequest if it exceeds the limit."""
        values = level.get("enum")
        texts = [level.get("description"), *(values if isinstance(values, Sequence) else ()), *level]
        self.left -= _LEVEL_CHARACTERS + sum(len(text) for text in texts if isinstance(text, str))
        if self.left < 0:
            message = f"The schemas of the tools exceed {MAX_CHARACTERS} characters with references written out."
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
