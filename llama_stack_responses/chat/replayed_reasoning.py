"""Returns earlier reasoning to the model, as its server sent it or as the model's profile says."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from ..core.types import Json
from ..items.reasoning_segments import ReasoningSegment
from .profile import Profile
from .reasoning_entries import BLOCKS, DETAILS, MESSAGE, PARTS, TEXT_FIELDS, TOOL_CALL, decoded, joined

_HIDDEN: Final = ""
"""The source of a text that does not return beside its entry."""


class Thoughts:
    """The reasoning of a conversation, by the messages to which it belongs.

    Args:
        items: the items, in which all calls are function calls.
        read: returns the content of a reasoning item.
        first: the index of the first item whose reasoning returns.
        signed: whether what a provider signed or encrypted returns from the items before it too.
    """

    def __init__(
        self, items: Sequence[Json], read: Callable[[Json], Sequence[ReasoningSegment]], first: int, *, signed: bool
    ) -> None:
        self._of_items: dict[int, list[ReasoningSegment]] = {}
        self._left_out: dict[int, Sequence[ReasoningSegment]] = {}
        self._of_calls: dict[int, list[ReasoningSegment]] = defaultdict(list)
        calls = _Calls(items)
        for number, item in enumerate(items):
            if item["type"] != "reasoning":
                continue
            kept = self._of_items[number] = []
            segments = read(item)
            if number < first:
                self._left_out[number] = segments
            for segment in chain.from_iterable(map(_apart, segments)):
                if number < first and not signs_call(segment):
                    if not signed or not _is_checked(segment):
                        continue
                    segment = replace(segment, source=_HIDDEN)  # noqa: PLW2901
                place = kept if segment.call_id is None else self._of_calls[calls.of(segment.call_id, number)]
                place.append(segment)

    def of_item(self, number: int) -> list[ReasoningSegment]:
        """Return what the reasoning item with this index adds to the message at its place."""
        return self._of_items[number]

    def left_out(self, number: int) -> Sequence[ReasoningSegment]:
        """Return the content of the reasoning item with this index if its text does not return; none otherwise."""
        return self._left_out.get(number, ())

    def of_call(self, number: int) -> list[ReasoningSegment]:
        """Return what belongs to the call with this index, and to its message."""
        return self._of_calls.get(number, [])


class _Calls:
    """Finds the calls to which reasoning belongs; models may use an id again in a later response."""

    def __init__(self, items: Sequence[Json]) -> None:
        self._places: dict[str, list[int]] = defaultdict(list)
        self._ends: list[int] = []
        for number, item in enumerate(items):
            if item["type"] == "function_call":
                self._places[item["call_id"]].append(number)
            elif item["type"] == "function_call_output" or item.get("role") == "user":
                self._ends.append(number)

    def of(self, call_id: str, number: int) -> int:
        """Return the index of the call of a reasoning item: one of the same model round, or the last before; or -1."""
        places = self._places.get(call_id, [])
        after = bisect_right(places, number)
        end = bisect_left(self._ends, number)
        if after < len(places) and (end == len(self._ends) or places[after] < self._ends[end]):
            return places[after]
        return places[after - 1] if after else -1


def _apart(segment: ReasoningSegment) -> Sequence[ReasoningSegment]:
    """Return the signature of a call apart from the text before it."""
    if segment.text and signs_call(segment):
        return ReasoningSegment(segment.text, source=segment.source), replace(segment, text="")
    return (segment,)


def _is_checked(segment: ReasoningSegment) -> bool:
    """Return whether a provider checks or decrypts a segment, or says itself which ones it reads."""
    return bool(segment.signature or (segment.entry and not segment.entry.startswith(f'["{PARTS}"')))


def signs_call(segment: ReasoningSegment) -> bool:
    """Return whether a segment is nothing but the signature of a call."""
    if segment.call_id is None:
        return False
    return segment.entry is None or segment.entry.startswith(f'["{TOOL_CALL}"')


def add_signature(call: Json, segment: ReasoningSegment) -> None:
    """Add its signature to a call, where the model server had it."""
    if segment.entry is None:
        _merge(call, {"extra_content": {"google": {"thought_signature": segment.signature}}})
    elif found := decoded(segment.entry, ""):
        _merge(call, found[1])


def add_reasoning(message: Json, reasoning: Sequence[Sequence[ReasoningSegment]], profile: Profile) -> None:
    """Add the reasoning to an assistant message.

    Args:
        message: the message.
        reasoning: the segments of each reasoning item.
        profile: says where the reasoning goes.
    """
    where = profile.reasoning_replay
    if where == "as_received":
        _add_as_received(message, reasoning, profile)
    elif where == BLOCKS:
        segments = [segment for item in reasoning for segment in item if segment.signature]
        if segments:
            message[where] = [_thinking_block(segment) for segment in segments]
    elif (text := text_of(reasoning)) and where != "none":
        if where == "think_tags":
            _add_inline(message, text, profile)
        else:
            message[where] = text


def _add_as_received(message: Json, reasoning: Sequence[Sequence[ReasoningSegment]], profile: Profile) -> None:
    if inline := text_of(reasoning, "think_tags"):
        _add_inline(message, inline, profile)
    message |= {name: text for name in TEXT_FIELDS if (text := text_of(reasoning, name))}
    lists: dict[str, list[Json]] = defaultdict(list)
    for segment in (segment for item in reasoning for segment in item):
        for place, value in _entries_of(segment):
            if place == MESSAGE:
                _merge(message, value)
            else:
                lists[place].append(value)
    if parts := lists.pop(PARTS, None):
        text = message["content"]
        message["content"] = [*parts, *([{"type": "text", "text": text}] if text else ())]
    message |= {place: joined(values) for place, values in lists.items() if place in (DETAILS, BLOCKS)}


def _entries_of(segment: ReasoningSegment) -> Iterable[tuple[str, Json]]:
    """Yield what a segment adds to the lists of a message, or to the message itself."""
    if segment.entry:
        if found := decoded(segment.entry, segment.text):
            yield found
    elif segment.signature and segment.source == PARTS:
        summary = {"type": "summary_text", "text": segment.text, "signature": segment.signature}
        yield PARTS, {"type": "reasoning", "summary": [summary]}
    elif segment.signature or (segment.text and segment.source == BLOCKS):
        yield BLOCKS, _thinking_block(segment)
    elif segment.text and segment.source == PARTS:
        yield PARTS, {"type": "thinking", "thinking": [{"type": "text", "text": segment.text}]}


def text_of(reasoning: Sequence[Sequence[ReasoningSegment]], source: str | None = None) -> str:
    """Return the text of the reasoning; with a `source`, only that which came there."""
    texts = (
        "".join(segment.text for segment in item if source is None or source in _sources(segment)) for item in reasoning
    )
    return "\n".join(filter(None, texts))


def _sources(segment: ReasoningSegment) -> Sequence[str]:
    return TEXT_FIELDS[:1] if segment.source is None else segment.source.split()


def _add_inline(message: Json, text: str, profile: Profile) -> None:
    tags = profile.inline_thinking
    opening, closing = (tags.open, tags.close) if tags else ("<think>", "</think>")
    message["content"] = f"{opening}\n{text}\n{closing}\n\n{message['content'] or ''}"


def _thinking_block(segment: ReasoningSegment) -> Json:
    block = {"type": "thinking", "thinking": segment.text}
    return block | {"signature": segment.signature} if segment.signature else block


def _merge(target: Json, members: Json) -> None:
    """Add the members of an object, and of the objects in it."""
    for name, value in members.items():
        inner = target.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            _merge(inner, value)
        else:
            target[name] = value
