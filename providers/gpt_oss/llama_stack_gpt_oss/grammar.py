"""Constrained output: a grammar of the model's whole turn, from after `<|start|>assistant`.

Reasoning is unrestricted. The header of the next message is forced, and its content must match its schema.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from .errors import InvalidRequest
from .harmony import ResponseFormat
from .process.grammars import GRAMMAR_CHARACTERS
from .schema_bounds import check_schema
from .tools import Tool

Json = Mapping[str, Any]
ANY_OBJECT: Json = {"type": "object"}
LIMITS = LLParserLimits(
    max_lexer_states=50_000, max_grammar_size=500_000, max_items_in_row=2_000, step_max_items=100_000
)
"""Maximum states of a grammar's lexer, of up to 2 kB each, symbols of its rules, and positions in its rules.

The positions are those that are possible after one byte, and those that the computation of one mask visits: 100,000
take some milliseconds.
"""
WHITE_SPACE = r"[ \t\n]{0,20}"

# Names in capitals are lexer terminals: they never match a special token.
RULES = """
TEXT: /(?s:.*)/
analysis: <|channel|> "analysis" <|message|> TEXT <|end|> <|start|> "assistant"
json: " "? <|constrain|> "json"
"""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`tool_choice`: whether a call is required, and which functions may be called."""

    required: bool
    allowed: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """The grammar of a turn in llguidance's Lark, and the field of the request that has its schemas."""

    text: str
    field: str

    def check(self) -> None:
        """Raise InvalidRequest for a schema that cannot be enforced. It may take many seconds."""
        if problem := LLMatcher.validate_grammar(self.text, limits=LIMITS):
            raise InvalidRequest(f"The schema cannot be enforced: {' '.join(problem.split())[:300]}", param=self.field)


def read_tool_choice(raw: str | Json | None, tools: Sequence[Tool]) -> ToolChoice:
    """Parse auto, none, required, a named function, or a list of allowed functions."""
    match raw:
        case None | "auto":
            return ToolChoice(False, tuple(tools))
        case "none":
            return ToolChoice(False, ())
        case "required":
            return _required(tuple(tools))
        case {"type": "function", "function": {"name": str(name)}}:
            return _required(_named([name], tools))
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(entries)}}:
            allowed = _named([_name_of(entry) for entry in entries], tools)
            return _required(allowed) if mode == "required" else ToolChoice(False, allowed)
    raise InvalidRequest("tool_choice is auto, none, required, a function or allowed_tools", param="tool_choice")


def turn_grammar(choice: ToolChoice, offered: Sequence[Tool], answer: ResponseFormat | None) -> TurnGrammar | None:
    """Return the grammar of a turn, unchecked; None if the output is unrestricted.

    InvalidRequest: a schema beyond the bounds.
    """
    fewer = len(choice.allowed) < len(offered)
    if not (choice.required or answer or (fewer and choice.allowed)):
        return None
    endings = [f"call{number}" for number in range(len(choice.allowed))]
    rules = [_call(number, tool, strict=choice.required) for number, tool in enumerate(choice.allowed)]
    if not choice.required:
        endings.append("final")
        rules.append(_final(answer))
    grammar = "\n".join((f"start: analysis* ({' | '.join(endings)})", RULES, *rules))
    field = "response_format" if answer else "tools"
    if len(grammar) > GRAMMAR_CHARACTERS:  # a frame to the engine is bounded too
        raise InvalidRequest(f"The schemas are too long: at most {GRAMMAR_CHARACTERS:,} characters", param=field)
    return TurnGrammar(grammar, field)


def _required(tools: tuple[Tool, ...]) -> ToolChoice:
    if not tools:
        raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tool_choice")
    return ToolChoice(True, tools)


def _named(names: Sequence[str], tools: Sequence[Tool]) -> tuple[Tool, ...]:
    known = {tool.name: tool for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    return tuple(known[name] for name in names)


def _name_of(entry: Any) -> str:
    match entry:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise InvalidRequest("allowed_tools lists functions by name", param="tool_choice")


def _call(number: int, tool: Tool, strict: bool) -> str:
    """Return the rule for a call: the two forms of its header, and its arguments."""
    recipient = json.dumps(f" to={tool.recipient}")
    channel = '("analysis" | "commentary")' if tool.built_in else '"commentary"'
    header = f"({recipient} <|channel|> {channel} | <|channel|> {channel} {recipient})"
    if tool.code_argument is not None:
        return f'call{number}: {header} " code"? <|message|> TEXT <|call|>'
    schema = tool.parameters if tool.parameters and (strict or tool.strict) else ANY_OBJECT
    kind = '(" code" | json)?' if tool.built_in else "json?"
    arguments, rule = f"arguments{number}", _json(schema, "tools")
    return f"call{number}: {header} {kind} <|message|> {arguments} <|call|>\n{arguments}: %json {rule}"


def _final(answer: ResponseFormat | None) -> str:
    header = 'final: <|channel|> "final" json? <|message|>'
    if answer is None:
        return f"{header} TEXT <|return|>"
    return f"{header} answer <|return|>\nanswer: %json {_json(answer.schema, 'response_format')}"


def _json(schema: Json, param: str) -> str:
    """Return the schema with bounded white space: an uncertain model could produce white space forever."""
    check_schema(schema, param)
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}})
