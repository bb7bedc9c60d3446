"""Reads the calls of an answer, in all forms of `call_fragments.py` and `repeated_arguments.py`, with signatures."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from itertools import chain, count
from typing import Any, Final

import orjson

from ..core.errors import ApiError, UnusableAnswerError, Upstream
from ..items.kinds.custom_tool_call import CUSTOM_INPUT
from ..stream.deltas import Delta, Origin, Reasoning, ToolCall
from .answer_end import AnswerEnd
from .answer_so_far import AnswerSoFar
from .call_fragments import CallFragments, Fragment
from .malformed_calls import ARGUMENTS
from .pieces import FEW, PIECE_CHARACTERS, call_parts, entries, few, flattened, member, text
from .reasoning_entries import TOOL_CALL, encoded, signatures_in
from .reasoning_reader import ReasoningReader

_CALL_CHARACTERS: Final = 8192
"""Characters counted for a call in addition to its arguments, since it creates an item and an output."""
_MAX_CALLS: Final = 256
"""Maximum calls of one round."""
_SIGNATURE_IN_ID: Final = "__thought__"
"""What LiteLLM puts between the id of a call and Gemini's signature, which is part of the id for its clients."""


class CallReader:
    """The calls of one answer.

    Args:
        answer: the answer.
        reasoning: its reasoning, which some providers sign with the calls.
        end: how it ends.

    Attributes:
        custom: the keys of the calls of custom tools.
    """

    __slots__ = ("_answer", "_end", "_reasoning", "custom")

    def __init__(self, answer: AnswerSoFar, reasoning: ReasoningReader, end: AnswerEnd) -> None:
        self._answer = answer
        self._end = end
        self._reasoning = reasoning
        self.custom: dict[Hashable, None] = {}  # a set: an empty dict takes less memory

    def take(self, out: list[Any], calls: Any) -> None:
        """Append the deltas of the calls of a chunk, or of the one in the legacy form."""
        if not isinstance(calls, list | tuple):
            calls = [{"function": calls}]
        known = self._answer.calls
        if len(calls) > 1 and known and known.repeats([*map(_fragment, count(), calls[:_MAX_CALLS])]):
            return
        self._signed_calls(out, calls) if len(calls) <= FEW else out.extend(few(self._many_calls(calls)))

    def lacking(self, calls: Any) -> Any:
        """Return those calls of a whole message that its deltas lack."""
        known = self._answer.calls
        if not (calls and known):
            return calls
        return [call for place, call in enumerate(entries(calls)) if known.lacks(_fragment(place, call))]

    def end(self, *, cut: bool) -> list[Any]:
        """Return the deltas of the rest of the calls.

        Args:
            cut: whether the answer ended early, so that the last call may be incomplete.

        Raises:
            ApiError: a call is incomplete, or it cannot be told what its fragments mean.
        """
        out: list[Any] = []
        if self._answer.calls:
            self._pass_calls(out, self._rest_of(self._answer.calls, cut=cut))
        return [*out, *(ToolCall(key, arguments='"}') for key in sorted(self.custom, key=str))]

    def _rest_of(self, calls: CallFragments, *, cut: bool) -> list[ToolCall]:
        """Return the rest of the calls; errors as for `end`."""
        try:
            return calls.end(cut=cut)
        except UnusableAnswerError as error:
            if self._end.reason is not None:
                raise
            # The model has not ended its answer: its server did.
            raise ApiError(502, error.message, upstream=Upstream("stream")) from None

    def _signed_calls(self, out: list[Any], calls: Iterable[Any], first: int = 0) -> None:
        for position, call in enumerate(calls, first):
            deltas = self._call(position, call)
            custom = bool(member(call, "custom"))
            if signed := _signed_members(call):
                out += self._signature_of_call(signed)
            self._pass_calls(out, deltas, custom=custom)

    def _signature_of_call(self, signed: dict[str, Any]) -> list[Reasoning]:
        """Return the delta of the signature of the call whose fragment came last; none if it came before."""
        assert self._answer.calls
        assert self._answer.calls.last
        key, call_id = self._answer.calls.last
        entry = encoded(TOOL_CALL, signed)
        if entry is None or self._reasoning.is_known(key[0], entry):
            return []
        signature = text((signed.get("extra_content") or {}).get("google"), "thought_signature")
        usual = signed == {"extra_content": {"google": {"thought_signature": signature}}}
        origin = Origin(entry=None if usual else entry, call=key)
        return [Reasoning("", signature=signature if usual else None, call_id=call_id, origin=origin)]

    def before(self, calls: CallFragments, deltas: list[Delta] | Iterator[Delta]) -> list[Delta] | Iterator[Delta]:
        """Return deltas behind what was kept of calls, which are over now that other content follows."""
        kept: list[Any] = []
        self._pass_calls(kept, calls.commit())
        return chain(flattened(kept), deltas) if kept else deltas

    def _pass_calls(self, out: list[Any], deltas: Iterable[ToolCall], *, custom: bool = False) -> None:
        for delta in deltas:
            if len(delta.arguments) > PIECE_CHARACTERS:
                out.extend(few(call_parts(delta, partial(self._arguments, delta.key, custom=custom))))
            else:
                delta.arguments = self._arguments(delta.key, delta.arguments, custom=custom)
                out.append(delta)

    def _many_calls(self, calls: Iterable[Any]) -> Iterator[Delta]:
        for position, call in enumerate(calls):
            out: list[Any] = []
            self._signed_calls(out, [call], position)
            yield from flattened(out)

    def _call(self, position: int, call: Any) -> list[ToolCall]:
        """Return the deltas of a fragment of a call, with its arguments as they came."""
        fragment = _fragment(position, call)
        if self._answer.calls is None:
            self._answer.calls = CallFragments()
        begun = self._answer.calls.begun
        deltas = self._answer.calls.take(fragment)
        self._answer.characters += len(fragment.arguments)
        if self._answer.calls.begun > begun:
            self._answer.characters += _CALL_CHARACTERS
            if self._answer.calls.begun > _MAX_CALLS:
                raise self._end.cut()
        return deltas

    def _arguments(self, key: Hashable, written: str, *, custom: bool) -> str:
        """Return a piece of a call's arguments; of a custom tool's input, a piece of JSON arguments."""
        written = self._answer.joiner.feed(key, written)
        return self._as_json(key, written) if custom else written

    def _as_json(self, key: Hashable, written: str) -> str:
        """Return a piece of a custom tool's input as a piece of JSON arguments, as other calls have."""
        opening = "" if key in self.custom else f'{{"{CUSTOM_INPUT}":"'
        self.custom[key] = None
        return opening + orjson.dumps(written).decode()[1:-1]


def _fragment(position: int, call: Any) -> Fragment:
    """Return a fragment of a call, at this place in the list of its chunk.

    Raises:
        ApiError: it is invalid.
    """
    index, call_id = _whole_number(member(call, "index")), member(call, "id") or ""
    custom = member(call, "custom")
    function = custom or member(call, "function")
    name, arguments = member(function, "name") or "", _arguments_in(function)
    as_object = arguments is not None and not isinstance(arguments, str)
    written = orjson.dumps(arguments).decode() if as_object else arguments or ""
    if isinstance(call_id, int | float):
        call_id = ""  # Old versions of TGI give each call the id 0.
    if not (isinstance(name, str) and isinstance(call_id, str) and isinstance(index, int | str | None)):
        raise ApiError(502, "The model server's stream has an invalid tool call.")
    call_id = call_id.partition(_SIGNATURE_IN_ID)[0]
    return Fragment(index, position, call_id, name, written, as_object, bool(custom))


def _whole_number(index: Any) -> Any:
    return int(index) if isinstance(index, float) and index.is_integer() else index


def _arguments_in(function: Any) -> Any:
    """Return the arguments of a function, or the input of a custom tool; None if there are none."""
    return next((found for name in ARGUMENTS if (found := member(function, name)) is not None), None)


def _signed_members(call: Any) -> dict[str, Any]:
    """Return the members with which some providers sign a call instead of their reasoning."""
    call_id = text(call, "id")
    of_id = {"id": call_id} if _SIGNATURE_IN_ID in call_id else {}
    if isinstance(call, dict):
        return signatures_in(call) | of_id
    extra, of_function = (getattr(each, "__pydantic_extra__", None) for each in (call, getattr(call, "function", None)))
    return signatures_in({**(extra or {}), "function": of_function}) | of_id if extra or of_function else of_id
