"""Reads the text of an answer: its content, which may have inline reasoning and logprobs, refusals and annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..stream.deltas import Annotation, Delta, Origin, Reasoning, Refusal, Text
from .answer_so_far import AnswerSoFar
from .pieces import FEW, PIECE_CHARACTERS, ContentPart, content_parts, entries, few, flattened, member, mended, text
from .profile import InlineThinking
from .reasoning_reader import ReasoningReader
from .repeated_text import RepeatedText
from .think_tags import ThinkTagSplitter
from .token_logprobs import ENTRY_CHARACTERS, is_half, logprob, logprob_weight, logprobs_of

_MAX_INDEX: Final = 2**31 - 1
"""Maximum of a position in an annotation."""
_MAX_HALF_TOKENS: Final = 16
"""Maximum tokens held back as parts of one character, which has at most four bytes."""
_THINK_TAGS: Final = Origin("think_tags")
"""Where reasoning between inline tags came."""


class TextReader:
    """The text of one answer.

    Args:
        answer: the answer.
        reasoning: its reasoning, which ends where text begins.
        tags: the tags of inline reasoning; None for none.

    Attributes:
        said: the content so far.
        splitter: separates inline reasoning from the content; None if there is none.
        half_tokens: the logprobs of tokens that are the beginning of a character.
    """

    __slots__ = ("_answer", "_reasoning", "half_tokens", "said", "splitter")

    def __init__(self, answer: AnswerSoFar, reasoning: ReasoningReader, tags: InlineThinking | None) -> None:
        self.said = RepeatedText()
        self._answer = answer
        self._reasoning = reasoning
        self.splitter = ThinkTagSplitter(tags) if tags else None
        self.half_tokens: list[dict[str, Any]] = []

    def take(self, out: list[Any], content: Any, choice: Any) -> None:
        """Append the deltas of the content of a chunk, without what the chunk repeats."""
        if type(content) is not str:
            self._content(out, content, choice)
            return
        reasoning = self._reasoning
        if reasoning.said.kept or reasoning.entries.is_open:
            reasoning.settle(out)
        for part in self.said.take(ContentPart(content, choice.logprobs)):
            self._content(out, part.content, part)

    def _content(self, out: list[Any], content: Any, choice: Any) -> None:
        tokens = choice.logprobs and choice.logprobs.content
        if type(content) is not str or (size := len(content)) > PIECE_CHARACTERS or (tokens and len(tokens) > FEW):
            out.extend(few(self._content_in_parts(content, tokens)))
            return
        self._answer.characters += size
        content = self._answer.joiner.feed("content", content)
        logprobs = logprobs_of(choice) if choice.logprobs else None
        if logprobs:
            self._answer.characters += sum(map(logprob_weight, logprobs))
        if logprobs and self.half_tokens:
            logprobs, self.half_tokens = self.half_tokens + logprobs, []
        if not content:
            self.half_tokens = (logprobs or [])[-_MAX_HALF_TOKENS:]
            return
        if self.splitter is None:
            out.append(Text(content, logprobs))
            return
        pieces = self._pieces(self.splitter.feed(content))
        # A token that crosses a tag belongs to both sides, so its logprob is sent for neither.
        if len(pieces) == 1 and isinstance(pieces[0], Text) and pieces[0].text == content:
            pieces[0].logprobs = logprobs
        out.extend(pieces)

    def _pieces(self, pieces: Iterable[tuple[bool, str]]) -> list[Delta]:
        return [
            Reasoning(text, self._reasoning.as_summary, origin=_THINK_TAGS) if is_reasoning else Text(text)
            for is_reasoning, text in pieces
        ]

    def _content_in_parts(self, content: Any, tokens: Any) -> Iterator[Delta]:
        if type(content) is not str:
            yield from self._content_list(entries(getattr(content, "parts", content)))
            return
        for part in content_parts(content, tokens or ()):
            out: list[Any] = []
            self._content(out, part.content, part)
            yield from out

    def _content_list(self, parts: Iterable[Any]) -> Iterator[Delta]:
        """Yield content that is a list of `{type: text}`, `{type: thinking}` and `{type: reasoning, summary}` parts."""
        for part in parts:
            if said := text(part, "text"):
                out: list[Any] = []
                self._reasoning.settle(out)
                yield from flattened(out)
                for shown in self.said.take(ContentPart(said, None)):
                    yield from map(Text, self._answer.joined("content", shown.content))
            if (thinking := member(part, "thinking")) is not None:
                yield from self._reasoning.thinking_part(part, thinking)
            for inner in entries(member(part, "summary") or ()):
                yield from self._reasoning.summary_part(inner)

    def without_text(self, choice: Any) -> None:
        """Keep the last logprobs of a chunk with an empty content, if their tokens are parts of a character."""
        last = (choice.logprobs.content or ())[-_MAX_HALF_TOKENS:]
        self.half_tokens += [entry for entry in map(logprob, last) if is_half(entry)]
        del self.half_tokens[:-_MAX_HALF_TOKENS]

    def settle(self, out: list[Any]) -> None:
        """Append the deltas of what was kept of the texts and the reasoning, which end here."""
        reasoning = self._reasoning
        if reasoning.said.kept or reasoning.entries.is_open:
            reasoning.settle(out)
        for part in self.said.settle():
            self._content(out, part.content, part)

    def end(self) -> list[Delta]:
        """Return the deltas of what was kept at the end of the answer, if it may have inline reasoning."""
        return self._pieces(self.splitter.end()) if self.splitter else []

    def refusal(self, value: str) -> Iterator[Delta]:
        """Yield the deltas of a refusal."""
        return map(Refusal, self._answer.joined("refusal", value))

    def annotations(self, annotations: Iterable[Any]) -> Iterator[Delta]:
        """Yield the deltas of annotations, without those that are invalid."""
        for each in annotations:
            self._answer.characters += ENTRY_CHARACTERS
            if annotation := _annotation(each):
                self._answer.characters += sum(
                    len(value) for value in annotation.value.values() if isinstance(value, str)
                )
                yield annotation


def _annotation(value: Any) -> Annotation | None:
    """Return a chat annotation `{type: url_citation, url_citation: {...}}` in the flat form of the Responses API."""
    citation = member(value, "url_citation")
    positions = {name: member(citation, name) for name in ("start_index", "end_index")}
    texts = {name: member(citation, name) for name in ("url", "title")}
    texts = {name: mended(each) if isinstance(each, str) else None for name, each in texts.items()}
    if not all(isinstance(position, int) and 0 <= position <= _MAX_INDEX for position in positions.values()):
        return None
    if not all(isinstance(each, str) for each in texts.values()):
        return None
    return Annotation({"type": "url_citation"} | texts | positions)
