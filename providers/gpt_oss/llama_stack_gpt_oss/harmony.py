"""Rendering of chat messages to Harmony tokens, the model's prompt format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
)

from .errors import InvalidRequest
from .tools import BROWSER, PYTHON, SchemaBudget, Tool, from_arguments, reduced
from .word_lengths import check_words

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


def render(encoding: HarmonyEncoding, chat: Chat) -> list[int]:
    """Return the prompt, up to and including `<|start|>assistant`."""
    messages = [_system(chat), *_Transcript(chat).messages()]
    check_words([message.to_dict() for message in messages], "messages")
    try:
        return encoding.render_conversation_for_completion(
            Conversation.from_messages(messages), Role.ASSISTANT, RenderConversationConfig(auto_drop_analysis=False)
        )
    except (HarmonyError, ValueError) as error:  # ValueError: half a surrogate pair, or deep nesting
        raise InvalidRequest(f"The messages or tools cannot be written as a gpt-oss prompt: {error}") from error


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
    _calls: dict[str, str] = field(default_factory=dict)

    def messages(self) -> list[Message]:
        given = self.chat.messages
        leading = next((n for n, m in enumerate(given) if m.get("role") not in ("system", "developer")), len(given))
        instructions = "\n\n".join(filter(None, (_text(m, n) for n, m in enumerate(given[:leading]))))
        made = list(_developer(instructions, self.chat))
        turn = _turn_start(given)
        for number, message in enumerate(given[leading:], leading):
            made += self._message(message, number, reasons=number >= turn)
        return made

    def _message(self, message: Json, number: int, reasons: bool) -> list[Message]:
        match message.get("role"):
            case "user":
                return [Message.from_role_and_content(Role.USER, _text(message, number))]
            case "assistant":
                return self._assistant(message, number, reasons)
            case "tool" | "function":
                return [self._result(message, number)]
            case "system" | "developer":
                content = DeveloperContent.new().with_instructions(_text(message, number))
                return [Message.from_role_and_content(Role.DEVELOPER, content)]
            case role:
                raise InvalidRequest(f"gpt-oss does not support the role {role!r}", param=f"messages[{number}].role")

    def _assistant(self, message: Json, number: int, reasons: bool) -> list[Message]:
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        calls = message.get("tool_calls") or ()
        made = []
        if reasons and isinstance(reasoning, str) and reasoning:
            made.append(Message.from_role_and_content(Role.ASSISTANT, reasoning).with_channel(ANALYSIS))
        if text := _text(message, number):
            channel = COMMENTARY if calls or message.get("phase") == COMMENTARY else FINAL
            made.append(Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))
        return made + [self._call(call, f"messages[{number}].tool_calls[{n}]") for n, call in enumerate(calls)]

    def _call(self, call: Json, param: str) -> Message:
        function = call.get("function")
        if not isinstance(function, Mapping) or not function.get("name"):
            raise InvalidRequest("A tool call needs the function's name", param=param)
        tool = self._tool(str(function["name"]))
        self._calls[str(call.get("id"))] = tool.recipient
        text = from_arguments(tool, str(function.get("arguments") or ""))
        message = Message.from_role_and_content(Role.ASSISTANT, text).with_recipient(tool.recipient)
        if tool.built_in:
            return message.with_channel(ANALYSIS).with_content_type("code")
        return message.with_channel(COMMENTARY).with_content_type("<|constrain|>json")

    def _result(self, message: Json, number: int) -> Message:
        author = self._calls.get(str(message.get("tool_call_id")))
        if author is None:
            raise InvalidRequest(
                f"No earlier tool call has the id {message.get('tool_call_id')!r}",
                param=f"messages[{number}].tool_call_id",
            )
        channel = COMMENTARY if author.startswith("functions.") else ANALYSIS
        made = Message.from_author_and_content(Author.new(Role.TOOL, author), _text(message, number))
        return made.with_recipient("assistant").with_channel(channel)

    def _tool(self, name: str) -> Tool:
        """Return the tool of a call, which may be one that is no longer offered."""
        known = next((tool for tool in self.chat.tools if tool.name == name), None)
        return known or Tool(name, "", None, strict=False)


def _developer(instructions: str, chat: Chat) -> list[Message]:
    functions = [tool for tool in chat.tools if not tool.built_in]
    content = DeveloperContent.new()
    if instructions:
        content = content.with_instructions(instructions)
    if functions:
        content = content.with_function_tools(_described(functions))
    parts: list[DeveloperContent | TextContent] = [content] if instructions or functions else []
    if chat.response_format:
        parts.append(TextContent(text=("\n\n" if parts else "") + chat.response_format.section()))
    return [Message.from_role_and_contents(Role.DEVELOPER, parts)] if parts else []


def _described(tools: Sequence[Tool]) -> list[ToolDescription]:
    budget = SchemaBudget()
    described = []
    for tool in tools:
        parameters = reduced(tool.parameters, budget) if tool.parameters and tool.parameters.get("properties") else None
        described.append(ToolDescription.new(tool.name, tool.description, parameters=parameters))
    return described


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
