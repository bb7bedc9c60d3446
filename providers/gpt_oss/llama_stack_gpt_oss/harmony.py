"""Rendering of chat messages to Harmony tokens, the model's prompt format."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from openai_harmony import (
    Author,
    HarmonyEncoding,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderOptions,
    Role,
    SystemContent,
    TextContent,
)

from .errors import InvalidRequest
from .prompt import Prompt
from .tool_descriptions import described
from .tools import BROWSER, PYTHON, Tool, check_name, from_arguments
from .vocabulary import Vocabulary

ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
EFFORTS = {
    "none": ReasoningEffort.LOW,
    "minimal": ReasoningEffort.LOW,
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.MEDIUM,
    "high": ReasoningEffort.HIGH,
    "xhigh": ReasoningEffort.HIGH,
    "max": ReasoningEffort.HIGH,
}
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of the final answer: JSON of a schema, which accepts any object if the client gave none."""

    name: str
    schema: Json
    description: str = ""

    def section(self) -> str:
        """Return the section of the developer message."""
        described = f"// {self.description}\n" if self.description else ""
        schema = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))
        return f"# Response Formats\n\n## {self.name}\n\n{described}{schema}"


@dataclass(frozen=True, slots=True)
class Chat:
    """The parts of a chat request that become the prompt."""

    messages: Sequence[Json]
    today: date
    tools: tuple[Tool, ...] = ()
    effort: ReasoningEffort = ReasoningEffort.MEDIUM
    response_format: ResponseFormat | None = None


def read_effort(name: str | None) -> ReasoningEffort:
    """Parse `reasoning_effort` to one of the model's three levels."""
    if name is None:
        return ReasoningEffort.MEDIUM
    if name not in EFFORTS:
        raise InvalidRequest(f"reasoning_effort is one of {', '.join(EFFORTS)}", param="reasoning_effort")
    return EFFORTS[name]


def read_response_format(raw: Json | None) -> ResponseFormat | None:
    """Parse `response_format`: text, json_object or json_schema."""
    kind = (raw or {}).get("type", "text")
    if raw is None or kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat("json_object", {"type": "object"})
    described = raw.get("json_schema")
    if kind != "json_schema" or not isinstance(described, Mapping) or not isinstance(described.get("schema"), Mapping):
        raise InvalidRequest(
            "response_format is text, json_object, or json_schema with a schema", param="response_format"
        )
    return ResponseFormat(
        str(described.get("name") or "response"), described["schema"], str(described.get("description") or "")
    )


class _Header(NamedTuple):
    """All of a message but its text."""

    role: Role
    name: str | None = None
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None


class _Part(NamedTuple):
    """A message: its header and its texts, which are tokenised one by one."""

    header: _Header
    texts: tuple[str, ...]


def render(vocabulary: Vocabulary, chat: Chat, context: int) -> list[int]:
    """Return the prompt, up to and including `<|start|>assistant`.

    The renderer holds Python's lock, so it writes only headers and tools, in small parts. InvalidRequest as soon as the
    prompt does not fit in the context.
    """
    prompt = Prompt(vocabulary, context, "messages")
    headers = _Headers(vocabulary.harmony)
    functions = any(not tool.built_in for tool in chat.tools)
    try:
        system = RenderOptions(conversation_has_function_tools=functions)
        prompt.add(vocabulary.harmony.render(_system(chat), system))
        for header, texts in _Transcript(chat, vocabulary.harmony).messages():
            opening, closing = headers.around(header)
            prompt.add(opening)
            for text in texts:
                prompt.add_text(text)
            prompt.add(closing)
    except HarmonyError as error:
        raise InvalidRequest(f"The messages or tools cannot be written as a gpt-oss prompt: {error}") from error
    prompt.add(vocabulary.answer_start)
    return prompt.tokens


class _Headers:
    """The tokens before and after the text of messages. Most messages of a conversation have the same few headers."""

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self._known: dict[_Header, tuple[list[int], list[int]]] = {}

    def around(self, header: _Header) -> tuple[list[int], list[int]]:
        if header not in self._known:
            author = Author(role=header.role, name=header.name)
            message = Message.from_author_and_content(author, TextContent(text=""))
            message.channel, message.recipient = header.channel, header.recipient
            message.content_type = header.content_type
            tokens = self._encoding.render(message)
            self._known[header] = tokens[:-1], tokens[-1:]
        return self._known[header]


def _system(chat: Chat) -> Message:
    content = (
        SystemContent.new().with_reasoning_effort(chat.effort).with_conversation_start_date(chat.today.isoformat())
    )
    names = {tool.name for tool in chat.tools}
    if names & BROWSER:
        content = content.with_browser_tool()
    if PYTHON in names:
        content = content.with_python_tool()
    return Message.from_role_and_content(Role.SYSTEM, content)


@dataclass(slots=True)
class _Transcript:
    """Converts the chat messages, and tracks which call each tool result answers."""

    chat: Chat
    encoding: HarmonyEncoding
    _calls: dict[str, str] = field(default_factory=dict)
    _tools: dict[str, Tool] = field(default_factory=dict)

    def messages(self) -> Iterator[_Part]:
        given = self.chat.messages
        self._tools = {tool.name: tool for tool in reversed(self.chat.tools)}
        leading = next((n for n, m in enumerate(given) if m.get("role") not in ("system", "developer")), len(given))
        instructions = "\n\n".join(filter(None, (_text(m, n) for n, m in enumerate(given[:leading]))))
        if texts := self._developer(instructions):
            yield _Part(_Header(Role.DEVELOPER), texts)
        turn = _turn_start(given)
        for number, message in enumerate(given[leading:], leading):
            yield from self._message(message, number, reasons=number >= turn)

    def _developer(self, instructions: str) -> tuple[str, ...]:
        """Return the texts of the leading developer message."""
        sections = [_instructions(instructions)] if instructions else []
        if functions := [tool for tool in self.chat.tools if not tool.built_in]:
            sections.append(described(functions, self.encoding))
        texts = ["\n\n".join(sections)] if sections else []
        if self.chat.response_format:
            texts.append(("\n\n" if texts else "") + self.chat.response_format.section())
        return tuple(texts)

    def _message(self, message: Json, number: int, reasons: bool) -> Iterator[_Part]:
        match message.get("role"):
            case "user":
                yield _Part(_Header(Role.USER), (_text(message, number),))
            case "assistant":
                yield from self._assistant(message, number, reasons)
            case "tool" | "function":
                yield self._result(message, number)
            case "system" | "developer":
                yield _Part(_Header(Role.DEVELOPER), (_instructions(_text(message, number)),))
            case role:
                raise InvalidRequest(f"gpt-oss does not support the role {role!r}", param=f"messages[{number}].role")

    def _assistant(self, message: Json, number: int, reasons: bool) -> Iterator[_Part]:
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        calls = message.get("tool_calls") or ()
        if reasons and isinstance(reasoning, str) and reasoning:
            yield _Part(_Header(Role.ASSISTANT, channel=ANALYSIS), (reasoning,))
        if text := _text(message, number):
            channel = COMMENTARY if calls or message.get("phase") == COMMENTARY else FINAL
            yield _Part(_Header(Role.ASSISTANT, channel=channel), (text,))
        for n, call in enumerate(calls):
            yield self._call(call, f"messages[{number}].tool_calls[{n}]")

    def _call(self, call: Json, param: str) -> _Part:
        function = call.get("function")
        if not isinstance(function, Mapping) or not function.get("name"):
            raise InvalidRequest("A tool call needs the function's name", param=param)
        name = check_name(str(function["name"]), param)
        # The tool may be one that is no longer offered.
        tool = self._tools.get(name) or Tool(name, "", None, strict=False)
        self._calls[str(call.get("id"))] = tool.recipient
        text = from_arguments(tool, str(function.get("arguments") or ""))
        channel, kind = (ANALYSIS, "code") if tool.built_in else (COMMENTARY, "<|constrain|>json")
        header = _Header(Role.ASSISTANT, channel=channel, recipient=tool.recipient, content_type=kind)
        return _Part(header, (text,))

    def _result(self, message: Json, number: int) -> _Part:
        author = self._calls.get(str(message.get("tool_call_id")))
        if author is None:
            raise InvalidRequest(
                f"No earlier tool call has the id {message.get('tool_call_id')!r}",
                param=f"messages[{number}].tool_call_id",
            )
        channel = COMMENTARY if author.startswith("functions.") else ANALYSIS
        header = _Header(Role.TOOL, author, channel=channel, recipient="assistant")
        return _Part(header, (_text(message, number),))


def _instructions(text: str) -> str:
    """Return the section of a developer message."""
    return f"# Instructions\n\n{text}"


def _turn_start(messages: Sequence[Json]) -> int:
    """Return the index of the first message whose reasoning is shown: none before the last final answer is."""
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        final = message.get("role") == "assistant" and not message.get("tool_calls")
        if final and message.get("content") and message.get("phase") != COMMENTARY:
            return number + 1
    return 0


def _text(message: Json, number: int) -> str:
    """Return the text of a message, whole or in parts; InvalidRequest for other content."""
    content = message.get("content")
    if content is None:
        return str(message.get("refusal") or "")
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequest(f"gpt-oss accepts only text, not {kind}", param=f"messages[{number}].content[{index}]")
        texts.append(text)
    return "".join(texts)
