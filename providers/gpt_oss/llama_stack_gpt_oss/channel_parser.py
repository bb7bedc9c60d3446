"""Parses the channels of the model's messages to deltas of a chat answer: reasoning, content, tool calls."""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .harmony import ANALYSIS
from .parser import Closed, Event, Header, Parser, Text
from .tools import Tool, called
from .vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More content, which the user sees."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """The beginning of a tool call; `index` counts the calls of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's JSON arguments."""

    index: int
    text: str


Delta = Reasoning | Content | CallOpened | CallArguments


@dataclass(slots=True)
class _Call:
    index: int
    code: str | None  # name of the argument that gets the message's text as a JSON string


class ChannelParser:
    """Converts the tokens of one choice to deltas, and counts tokens for the usage."""

    def __init__(self, vocabulary: Vocabulary, tools: Sequence[Tool]) -> None:
        self._parser = Parser(vocabulary)
        self._tools = {tool.name: tool for tool in tools}
        self._offered = tuple(tools)
        self._call: _Call | None = None
        self._in_reasoning = False
        self._has_content = False
        self.tokens = 0
        self.reasoning_tokens = 0
        self.calls = 0

    @property
    def visible(self) -> bool:
        """Whether the last token was text for the user."""
        return self._call is None and not self._in_reasoning and self._parser.in_text

    def feed(self, token: int) -> Iterator[Delta]:
        """Yield the deltas of one more token."""
        self.tokens += 1
        self.reasoning_tokens += self._in_reasoning
        for event in self._parser.feed(token):
            yield from self._delta(event)

    def finish(self) -> Iterator[Delta]:
        """Yield the last deltas."""
        for event in self._parser.finish():
            yield from self._delta(event)

    def _delta(self, event: Event) -> Iterator[Delta]:
        match event:
            case Header():
                yield from self._open(event)
            case Text(text):
                yield from self._text(text)
            case Closed():
                yield from self._close()

    def _open(self, header: Header) -> Iterator[Delta]:
        name = called(header.recipient, self._offered) if header.recipient else None
        # A message to an unknown recipient is hidden from the user too.
        self._in_reasoning = name is None and (header.channel == ANALYSIS or header.recipient is not None)
        if name is None:
            yield from self._separate()
            return
        tool = self._tools.get(name)
        self._call = _Call(self.calls, tool.code_argument if tool else None)
        self.calls += 1
        yield CallOpened(self._call.index, f"call_{uuid.uuid4().hex}", name)
        if self._call.code is not None:
            yield CallArguments(self._call.index, f'{{{json.dumps(self._call.code)}: "')

    def _separate(self) -> Iterator[Delta]:
        """Separate two messages to the user by a blank line."""
        if not self._in_reasoning and self._has_content:
            yield Content("\n\n")

    def _text(self, text: str) -> Iterator[Delta]:
        if self._call is not None:
            escaped = text if self._call.code is None else json.dumps(text, ensure_ascii=False)[1:-1]
            yield CallArguments(self._call.index, escaped)
        elif self._in_reasoning:
            yield Reasoning(text)
        else:
            self._has_content = True
            yield Content(text)

    def _close(self) -> Iterator[Delta]:
        if self._call is not None and self._call.code is not None:
            yield CallArguments(self._call.index, '"}')
        self._call = None
        self._in_reasoning = False
