"""An incremental parser from the model's tokens to messages.

Malformed Harmony never fails: text without a header is a message of the final channel, and a token that interrupts a
header starts the next one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from .vocabulary import Vocabulary

START, END, MESSAGE = "<|start|>", "<|end|>", "<|message|>"
CHANNEL, CONSTRAIN, RETURN, CALL = "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message. `recipient` is None if the message is not for a tool."""

    channel: str
    recipient: str | None
    content_type: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """More text of the open message."""

    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of the open message; `by` is the special token that ended it, None at the end of the output."""

    by: str | None


Event = Header | Text | Closed


class _State(Enum):
    HEADER = auto()
    CONTENT = auto()
    BETWEEN = auto()


class Parser:
    """Parses the tokens after `<|start|>assistant`: call feed() for each, then finish()."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._state = _State.HEADER
        self._sections: list[tuple[str, bytearray]] = [("", bytearray())]
        self._decoder = vocabulary.decoder()
        self.in_text = False  # whether the last token was part of a message's text

    def feed(self, token: int) -> Iterator[Event]:
        """Yield the events of one more token."""
        name = self._vocabulary.names.get(token)
        self.in_text = name is None and self._state is _State.CONTENT
        if name is None:
            yield from self._word(self._vocabulary.bytes_of(token) or b"")
        else:
            yield from self._special(name)

    def finish(self) -> Iterator[Event]:
        """Yield the last events. An incomplete header of plain text is a message of the final channel."""
        if self._state is _State.HEADER and (text := self._headless()):
            yield Header("final", None, None)
            yield Text(text)
            yield Closed(None)
        else:
            yield from self._close(None)
        self._state = _State.BETWEEN

    def _word(self, word: bytes) -> Iterator[Event]:
        if self._state is _State.CONTENT:
            if text := self._decoder.decode(word):
                yield Text(text)
            return
        if self._state is _State.BETWEEN:
            self._open_header("")
        self._sections[-1][1].extend(word)

    def _special(self, name: str) -> Iterator[Event]:
        if name in (END, RETURN, CALL):
            yield from self._close(name)
        elif name == START:
            yield from self._close(None)
            self._open_header(START)
        elif name == MESSAGE:
            yield from self._open_message()
        elif name in (CHANNEL, CONSTRAIN):
            yield from self._marker(name)

    def _marker(self, name: str) -> Iterator[Event]:
        if self._state is _State.HEADER:
            self._sections.append((name, bytearray()))
            return
        yield from self._close(None)
        self._open_header(name)

    def _open_header(self, section: str) -> None:
        self._state = _State.HEADER
        self._sections = [(section, bytearray())]

    def _open_message(self) -> Iterator[Event]:
        if self._state is _State.CONTENT:
            yield from self._close(None)
        yield _header([(name, bytes(raw).decode(errors="replace")) for name, raw in self._sections])
        self._sections = [("", bytearray())]
        self._state = _State.CONTENT

    def _close(self, by: str | None) -> Iterator[Event]:
        if self._state is _State.CONTENT:
            if rest := self._decoder.decode(b"", final=True):
                yield Text(rest)
            yield Closed(by)
        self._decoder.reset()
        self._state = _State.BETWEEN
        self._sections = [("", bytearray())]

    def _headless(self) -> str:
        """Return the text of a header that is plain text; nothing for a truncated header."""
        if len(self._sections) > 1 or self._sections[0][0]:
            return ""
        text = bytes(self._sections[0][1]).decode(errors="replace")
        begun = text.strip()
        return "" if begun == "assistant" or begun.startswith("to=") or "to=".startswith(begun) else text


def _header(sections: list[tuple[str, str]]) -> Header:
    """Parse `assistant to=X<|channel|>C to=X<|constrain|>T`; all parts are optional, the recipient in either place."""
    channel, recipient, content_type = "", None, None
    for name, text in sections:
        words = text.split()
        addressed = next((word.removeprefix("to=") for word in words if word.startswith("to=")), None)
        recipient = recipient or addressed or None
        others = [word for word in words if not word.startswith("to=")]
        if name == CHANNEL and others:
            channel = others[0]
            content_type = content_type or (others[1] if len(others) > 1 else None)
        elif name == CONSTRAIN and others:
            content_type = others[0]
    return Header(channel or "final", None if recipient in ("assistant", "all") else recipient, content_type)
