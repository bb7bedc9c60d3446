"""Reads the reasoning of an answer, in all the members that have it, with its signatures.

It comes in `TEXT_FIELDS`, in `reasoning_details` and `thinking_blocks`, and in the parts of the content.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

from ..stream.deltas import Delta, Origin, Reasoning
from .answer_so_far import AnswerSoFar
from .pieces import PIECE_CHARACTERS, ContentPart, entries, few, flattened, mended, text
from .reasoning_entries import (
    BLOCKS,
    DETAILS,
    MESSAGE,
    OPAQUE,
    PARTS,
    TEXT_FIELDS,
    ReasoningEntries,
    encoded,
    is_sealed,
    signatures_in,
    text_name,
    texts_of,
)
from .repeated_text import RepeatedText

_REASONING_TEXTS: Final = ("text", "content", "thinking", "reasoning", "summary")
"""Members of an object of reasoning that may have its text."""
_SIGNATURE_CHARACTERS: Final = 1024
"""Characters counted for a signature in addition to its own: it is kept with its position in the reasoning."""
_REASONING: Final = Origin("reasoning")
_BOTH: Final = Origin("reasoning_content reasoning")
_COPILOT: Final = Origin("reasoning_text")
_ENTRIES_ONLY: Final = Origin("")
_BLOCKS_ONLY: Final = Origin(BLOCKS)
_PARTS: Final = Origin(PARTS)
"""Where the text of reasoning came."""


class ReasoningReader:
    """The reasoning of one answer.

    Args:
        answer: the answer.
        summaries: as for `ChunkReader`.
        as_summary: whether the text of reasoning without a summary is presented as its summary.

    Attributes:
        as_summary: whether text of reasoning is presented as its summary.
        entries: the entries of its lists.
        own_summaries: whether the provider sends summaries that the client gets; None until its first piece says so.
        said: its text so far.
    """

    __slots__ = ("_answer", "_late", "_signed", "_summaries", "as_summary", "entries", "own_summaries", "said")

    def __init__(self, answer: AnswerSoFar, *, summaries: bool, as_summary: bool) -> None:
        self.as_summary = as_summary
        self.said = RepeatedText()
        self._answer = answer
        self._summaries = summaries
        self.own_summaries: bool | None = None if summaries else False
        self.entries = ReasoningEntries()
        self._late: dict[str, None] | None = None
        self._signed: set[tuple[Hashable, str]] | None = None

    def take(self, out: list[Any], fields: dict[str, Any], visible: Any) -> None:
        """Append the deltas of the reasoning of a chunk, without what the chunk repeats."""
        if details := fields.get(DETAILS):
            out += few(self._detailed(fields, entries(details)))
            return
        if self.entries.is_open:
            out += self._end_entry()
        if type(visible) is not str or self.own_summaries or fields.get(BLOCKS):
            self._reasoning_apart(out, fields, visible)
            return
        for part in self.said.take(ContentPart(visible, None)):
            own = (
                fields
                if part.content is visible
                else {name: part.content for name in fields if fields[name] == visible}
            )
            out += self._reasoning(own, part.content)

    def _reasoning_apart(self, out: list[Any], fields: dict[str, Any], visible: Any) -> None:
        """Append the deltas of reasoning that is no text alone, without the blocks that came before."""
        if self.said.kept:
            self.settle(out)
        if blocks := _blocks(fields):
            new = [block for block in blocks if not self.entries.is_known(block) or not self._answer.has_begun]
            if self._is_repeated("".join(text(block, "thinking") for block in blocks)):
                out += few(self._sealed_blocks(new))
                return
            if not new:
                return
            fields = {**fields, BLOCKS: new}
        self.said.add("".join(text(block, "thinking") for block in blocks) or _plain_reasoning(fields))
        out += self._reasoning(fields, visible)

    def _sealed_blocks(self, blocks: Iterable[Any]) -> Iterator[Delta]:
        """Yield the deltas of the blocks that are signed or encrypted, and whose texts were shown."""
        for block in blocks:
            entry = encoded(BLOCKS, block) if is_sealed(block) else None
            if entry:
                self._answer.characters += _SIGNATURE_CHARACTERS + len(entry)
                yield from self._mark(entry)

    def _is_repeated(self, thoughts: str) -> bool:
        """Return whether a list behind the answer has all thoughts before it once more."""
        return self._answer.has_begun and self.said.is_all(thoughts)

    def _repeated(self, place: str, found: Iterable[Any], texts: Iterable[str]) -> Iterator[Delta]:
        """Take what is new of entries whose texts were shown: all without earlier ones, else what is sealed."""
        had_texts = self.entries.have_text
        for entry, said in zip(found, texts, strict=True):
            name = text_name(entry) if isinstance(entry, dict) else None
            if name is None or not had_texts:
                yield from self._entry(place, entry, said, said=False)
            elif is_sealed(entry) and not self.entries.is_known(entry):
                yield from self._entry(place, {**entry, name: ""}, "", said=False)

    def settle(self, out: list[Any]) -> None:
        """Append the deltas of what was kept of the reasoning, which ends here."""
        for part in self.said.settle():
            out += self._reasoning({"reasoning": part.content}, part.content)
        if self.entries.is_open:
            out += self._end_entry()

    def _reasoning(self, fields: dict[str, Any], visible: Any) -> list[Any]:
        if (
            type(visible) is not str
            or len(visible) > PIECE_CHARACTERS
            or self.own_summaries is not False
            or fields.get(BLOCKS)
        ):
            return few(self._reasoning_in_parts(fields))
        self._answer.characters += len(visible)
        piece = self._answer.joiner.feed("reasoning", visible)
        return [Reasoning(piece, self.as_summary, origin=_origin(fields))] if piece else []

    def _reasoning_in_parts(self, fields: dict[str, Any]) -> Iterator[Delta]:
        self._decide_summaries(())
        origin = _origin(fields)
        for reasoning, signature, entry in _reasoning_blocks(fields):
            yield from self._deltas("reasoning", reasoning, self.as_summary, origin)
            if signature:
                self._answer.characters += _SIGNATURE_CHARACTERS + len(signature)
                yield Reasoning("", self.as_summary, signature)
            elif entry:
                self._answer.characters += _SIGNATURE_CHARACTERS + len(entry)
                yield from self._mark(entry)

    def _decide_summaries(self, texts: Iterable[tuple[bool, str]]) -> None:
        """Decide, with the first reasoning, whether the provider sends summaries."""
        if self.own_summaries is None:
            self.own_summaries = any(is_summary for is_summary, _ in texts)
            self.as_summary = self.as_summary and not self.own_summaries

    def _detailed(self, fields: dict[str, Any], details: Sequence[Any]) -> Iterator[Delta]:
        """Yield the deltas of `reasoning_details`: their texts, unless the same chunk has another one, and the rest."""
        plain = _plain_reasoning(fields)
        texts, origin = texts_of(details), _origin(fields)
        whole = "".join(said for _, said in texts)
        if plain in ("", whole) and self._is_repeated(whole):
            yield from self._repeated(DETAILS, details, (said for _, said in texts))
            return
        if plain or any(text for _, text in texts):
            self._decide_summaries(texts)
        said = bool(self.own_summaries) or plain in ("", whole)
        if not said:
            yield from self._thoughts(plain, origin)
        for entry, (is_summary, reasoning) in zip(details, texts, strict=True):
            apart = is_summary and bool(self.own_summaries)
            yield from self._entry(DETAILS, entry, reasoning, said=said and not apart)
            if self.own_summaries:
                key = "summary" if is_summary else "reasoning"
                self.said.add(reasoning)
                yield from self._deltas(key, reasoning, is_summary, origin)
            elif said:
                yield from self._thoughts(reasoning, origin)

    def _thoughts(self, value: str, origin: Origin | None) -> Iterator[Delta]:
        """Yield the deltas of a text of reasoning, without what it repeats."""
        for part in self.said.take(ContentPart(value, None)) if value else ():
            yield from self._deltas("reasoning", part.content, self.as_summary, origin)

    def _entry(self, place: str, fragment: Any, reasoning: str, *, said: bool) -> Iterator[Delta]:
        """Take a fragment of an entry; yield the end of the entry before it."""
        if not isinstance(fragment, dict) or (self.entries.is_known(fragment) and text_name(fragment) is None):
            return
        if not self.entries.continues(place, fragment):
            out: list[Any] = []
            self.settle(out)
            yield from flattened(out)
            self._answer.characters += _SIGNATURE_CHARACTERS
        self.entries.take(place, fragment, reasoning, said=said)
        if not said:
            self._answer.characters += len(reasoning)

    def _end_entry(self) -> list[Reasoning]:
        is_said, entry = self.entries.is_said, self.entries.end()
        if entry is None:
            return []
        self._answer.characters += len(entry)
        return self._mark(entry, is_said=is_said)

    def _mark(self, entry: str, *, is_said: bool = False) -> list[Reasoning]:
        """Return the delta of an entry; behind text, an entry without text waits, so that the text is not cut."""
        if self._answer.spoken and not (is_said or self._answer.calls):
            self._late = self._late or {}
            self._late[entry] = None
            return []
        call = self._answer.calls.last if self._answer.calls else None
        return [
            Reasoning("", self.as_summary, call_id=call and call[1], origin=Origin(entry=entry, call=call and call[0]))
        ]

    def late_marks(self) -> list[Reasoning]:
        """Return the deltas of the entries that waited for the end of the text."""
        late, self._late = self._late, None
        return [Reasoning("", origin=Origin(entry=entry)) for entry in late or ()]

    def signature_of_message(self, fields: dict[str, Any]) -> list[Reasoning]:
        """Return the delta of a signature of the whole message; none if it came before."""
        places = {name: fields.get(name) for name in ("extra_content", "provider_specific_fields", OPAQUE)}
        found = signatures_in(places)
        entry = encoded(MESSAGE, found) if found else None
        return [] if entry is None or self.is_known(None, entry) else self._mark(entry)

    def _deltas(self, key: str, value: str, is_summary: bool, origin: Origin | None = None) -> Iterator[Delta]:
        for piece in self._answer.joined(key, value):
            yield Reasoning(piece, is_summary, origin=origin)

    def summary_part(self, part: Any) -> Iterator[Delta]:
        """Yield the deltas of a part of the summary of a part of the content."""
        yield from self._deltas("summary", text(part, "text"), self._summaries, _PARTS)
        if signature := _whole_text(part, "signature"):
            self._answer.characters += _SIGNATURE_CHARACTERS + len(signature)
            yield Reasoning("", self._summaries, signature)

    def thinking_part(self, part: Any, thinking: Any) -> Iterator[Delta]:
        """Yield the deltas of a part of the content that has reasoning."""
        pieces = [thinking] if isinstance(thinking, str) else [text(each, "text") for each in entries(thinking)]
        whole = "".join(pieces)
        if self._is_repeated(whole):
            yield from self._repeated(PARTS, [part], [whole])
            return
        self.said.add(whole)
        yield from self._entry(PARTS, part, whole, said=True)
        for piece in pieces:
            yield from self._deltas("reasoning", piece, self.as_summary, _PARTS)

    def is_known(self, index: Hashable, entry: str) -> bool:
        """Return whether a signature came before; count a new one."""
        self._signed = self._signed or set()
        if (index, entry) in self._signed:
            return True
        self._signed.add((index, entry))
        self._answer.characters += _SIGNATURE_CHARACTERS + len(entry)
        return False


def _blocks(fields: dict[str, Any]) -> Sequence[Any]:
    return entries(fields.get(BLOCKS) or ())


def _reasoning_text(value: Any) -> str:
    """Return reasoning that is text, an object with a text, or a list of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "".join(each if isinstance(each, str) else _text_in(each) for each in entries(value))
    return _text_in(value)


def _plain_reasoning(fields: dict[str, Any]) -> str:
    """Return the text of the reasoning of a chunk; empty if it is elsewhere."""
    return next(filter(None, (_reasoning_text(fields.get(name)) for name in TEXT_FIELDS)), "")


def _text_in(value: Any) -> str:
    return next(filter(None, (text(value, name) for name in _REASONING_TEXTS)), "")


def _origin(fields: dict[str, Any]) -> Origin | None:
    """Return where the reasoning of a chunk was."""
    if fields.get("reasoning"):
        return _BOTH if fields.get("reasoning_content") else _REASONING
    if fields.get("reasoning_content"):
        return None
    if fields.get("reasoning_text"):
        return _COPILOT
    return _BLOCKS_ONLY if fields.get(BLOCKS) else _ENTRIES_ONLY


def _reasoning_blocks(fields: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the pieces of reasoning with their signatures, and blocks that the provider has encrypted."""
    plain = _plain_reasoning(fields)
    blocks = _blocks(fields)
    if not any(text(block, "thinking") for block in blocks):
        yield plain, "", ""
    for block in blocks:
        hidden = isinstance(block, dict) and block.get("type") == "redacted_thinking"
        yield text(block, "thinking"), _whole_text(block, "signature"), (hidden and encoded(BLOCKS, block)) or ""


def _whole_text(value: Any, name: str) -> str:
    """Return a member that is a signature; empty if it is absent or none."""
    return mended(text(value, name)) or ""
