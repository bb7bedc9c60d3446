"""Turn chat chunks into deltas; differences between providers are handled here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.stream.calls import CUSTOM_INPUT
from llama_stack_responses.core.stream.deltas import (
    Annotation,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    Usage,
)
from llama_stack_responses.logs import get_logger

from .profile import Profile
from .surrogates import SurrogateMender
from .thinking import ThinkingSplitter

logger = get_logger(__name__)

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "abort": "cancelled",
    "cancelled": "cancelled",
}
_BROKEN: Final = frozenset({"error", "timeout"})
_LOWEST_LOGPROB: Final = -9999.0
_CALL: Final = 8192
"""Characters counted for a call besides its arguments, since it creates an item and an output."""
_ENTRY: Final = 64
"""Characters counted for an annotation, a token's logprob or an alternative, besides its text."""
_LONGEST_NAME: Final = 1024
_MOST_TOPS: Final = 20
"""Maximum alternatives to a token: clients cannot request more."""
_MOST_STALLS: Final = 6250
"""Maximum number of consecutive checks that find no new content."""
_MOST_HALVES: Final = 16
"""Maximum tokens held back as parts of one character, which has at most four bytes."""


@dataclass(slots=True)
class _CallSoFar:
    """State of the call behind a chunk's index. Some servers give every call the index 0."""

    number: int = 0
    call_id: str = ""
    name: str = ""
    has_arguments: bool = False
    came_whole: bool = False

    def is_another(self, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a fragment with this id, name and arguments begins a new call."""
        if call_id and self.call_id:
            return call_id != self.call_id
        if not (self.has_arguments and name and self.name):
            return False
        return name != self.name or (self.came_whole and arguments.startswith("{"))

    def add(self, call_id: str, name: str, arguments: str) -> None:
        """Add a fragment."""
        self.call_id = self.call_id or call_id
        self.name += name if name != self.name else ""
        if len(self.name) > _LONGEST_NAME:
            raise ApiError(502, f"The model server's stream has a call with a name of over {_LONGEST_NAME} characters.")
        if arguments and not self.has_arguments:
            self.has_arguments, self.came_whole = True, _is_object(arguments)


class Enough(Exception):  # noqa: N818 (a normal end of a round)
    """The round has reached its limit on output, and ends like one that reached its limit on tokens."""


class ChunkReader:
    """Reads the chunks of one model round.

    It supports: reasoning as `reasoning_content`, `reasoning`, `thinking_blocks`, in a content list or between inline
    tags; refusals; parallel calls whose fragments interleave, whose ids or names come late, or whose index is always 0;
    calls of custom tools; usage in a chunk of its own or in every chunk (the last one counts); chunks without choices;
    null content.

    Args:
        profile: how the model's answers are read.
        most: maximum characters of the round.
        summaries: whether the client asked for summaries of the reasoning. These are what the provider sends as such,
            as in OpenRouter's `reasoning_details` or in a content list. If the first piece of reasoning has none, the
            profile may present the text of the reasoning as its summary.

    Attributes:
        service_tier: the provider's name for the tier that served the round, if it reported one.
        said: number of characters read so far, including those that are hidden from the client.
    """

    def __init__(self, profile: Profile, most: int, *, summaries: bool = False) -> None:
        self.service_tier: str | None = None
        self.said = 0
        self._most = most
        self._seen = 0
        self._stalls = 0
        self._summaries = summaries
        self._own_summaries: bool | None = None if summaries else False
        self._as_summary = summaries and profile.reasoning_summary == "text"
        self._splitter = ThinkingSplitter(profile.inline_thinking) if profile.inline_thinking else None
        self._finish: str | None = None
        self._usage: Any = None
        self._mender = SurrogateMender()
        self._calls: dict[int, _CallSoFar] = {}
        self._custom: set[tuple[int, int]] = set()
        self._half_tokens: list[dict[str, Any]] = []

    def read(self, chunk: Any) -> list[Delta]:
        """Return the deltas of one chunk, in order.

        Raises:
            Enough: the chunks before this one have exceeded the limit.
            ApiError: the chunk is invalid.
        """
        if self.said > self._most:
            raise self.cut()
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not chunk.choices:
            return []
        choice = chunk.choices[0]
        if choice.finish_reason:
            self._finish = choice.finish_reason
            self.service_tier = getattr(chunk, "service_tier", None)
        delta = choice.delta
        if delta is None:
            return []
        fields: dict[str, Any] = delta.__dict__
        if extra := delta.__pydantic_extra__:
            fields = fields | extra
        return self._deltas(fields, choice)

    def cut(self) -> Enough:
        """End the round here, as incomplete, whatever follows."""
        self._finish = "length"
        return Enough()

    def check_progress(self) -> None:
        """Check, every few chunks, whether they had content.

        Raises:
            ApiError: the stream has had no content for too long.
        """
        self._stalls = self._stalls + 1 if self.said == self._seen else 0
        self._seen = self.said
        if self._stalls > _MOST_STALLS:
            raise ApiError(502, "The inference provider goes on and on sending chunks that say nothing.")

    def end(self) -> list[Delta]:
        """Return the last deltas of the round, ending with `Finish`.

        Raises:
            ApiError: the stream ended without a finish reason, or with one that reports a failure.
        """
        if self._finish is None:
            raise ApiError(502, "The inference provider's stream ended before the answer was finished.")
        if self._finish in _BROKEN:
            raise ApiError(502, f"The inference provider broke off the answer: {self._finish}.")
        reason = _FINISH.get(self._finish)
        if reason is None:
            logger.warning("unknown finish_reason %.100r treated as 'stop'", self._finish)
        rest = self._pieces(self._splitter.end()) if self._splitter else []
        rest += [ToolCall(key, arguments='"}') for key in sorted(self._custom)]
        return [*rest, Finish(reason or "stop", _usage(self._usage))]

    def _deltas(self, fields: dict[str, Any], choice: Any) -> list[Delta]:
        # Each chunk has one of these fields, rarely two, so checking for an absent one must be cheap.
        reasons = fields.get("reasoning_content") or fields.get("reasoning") or fields.get("thinking_blocks")
        shown = reasons or (self._summaries and _details(fields))
        out: list[Delta] = self._reasoning(fields, shown) if shown else []
        if content := fields.get("content"):
            self._content(out, content, choice)
        elif content == "" and choice.logprobs:
            self._half_tokens += [entry for entry in _logprobs(choice) if _is_half(entry)]
            del self._half_tokens[:-_MOST_HALVES]
        if refusal := fields.get("refusal"):
            self.said += len(refusal)
            out.append(Refusal(self._mender.feed("refusal", refusal)))
        if annotations := fields.get("annotations"):
            for annotation in annotations:
                self.said += _ENTRY + len(repr(annotation))
                out.extend(_annotation(annotation))
        if call := fields.get("function_call"):
            # The legacy form, for one call only.
            out.append(self._call(0, {"function": call}))
        if calls := fields.get("tool_calls"):
            self._signed_calls(out, calls)
        return out

    def _reasoning(self, fields: dict[str, Any], shown: Any) -> list[Delta]:
        self.said += len(shown) if type(shown) is str else len(repr(shown))
        if self._own_summaries is None:
            self._own_summaries = any(is_summary for is_summary, _ in _details(fields))
            self._as_summary = self._as_summary and not self._own_summaries
        if self._own_summaries and (details := _details(fields)):
            return [
                Reasoning(text, is_summary)
                for is_summary, piece in details
                if (text := self._mender.feed("summary" if is_summary else "reasoning", piece))
            ]
        return [
            Reasoning(text, self._as_summary, signature)
            for piece, signature in _thoughts(fields)
            if (text := self._mender.feed("reasoning", piece)) or signature
        ]

    def _signed_calls(self, out: list[Delta], calls: Iterable[Any]) -> None:
        for position, call in enumerate(calls):
            made = self._call(position, call)
            if signature := _signature(call):
                self.said += len(signature)
                out.append(Reasoning("", signature=signature, call_id=made.call_id))
            out.append(made)

    def _content(self, out: list[Delta], content: Any, choice: Any) -> None:
        if type(content) is not str:
            parts = list(self._content_list(getattr(content, "parts", content)))
            self.said += sum(map(_weight, parts))
            out.extend(parts)
            return
        self.said += len(content)
        content = self._mender.feed("content", content)
        logprobs = _logprobs(choice) if choice.logprobs else None
        if logprobs:
            self.said += sum(map(_logprob_weight, logprobs))
        if logprobs and self._half_tokens:
            logprobs, self._half_tokens = self._half_tokens + logprobs, []
        if not content:
            self._half_tokens = logprobs or []
            return
        if self._splitter is None:
            out.append(Text(content, logprobs))
            return
        pieces = self._pieces(self._splitter.feed(content))
        # A token that crosses a tag belongs to both sides, so its logprob is sent for neither.
        if len(pieces) == 1 and isinstance(pieces[0], Text) and pieces[0].text == content:
            pieces[0].logprobs = logprobs
        out.extend(pieces)

    def _pieces(self, pieces: Iterable[tuple[bool, str]]) -> list[Delta]:
        return [Reasoning(text, self._as_summary) if is_reasoning else Text(text) for is_reasoning, text in pieces]

    def _content_list(self, parts: Iterable[Any]) -> Iterator[Text | Reasoning]:
        """Yield content that is a list of `{type: text}`, `{type: thinking}` and `{type: reasoning, summary}` parts."""
        for part in parts:
            if text := _get(part, "text"):
                yield Text(text)
            thinking = _get(part, "thinking") or ()
            if isinstance(thinking, str):
                yield Reasoning(thinking, self._as_summary)
            else:
                yield from (Reasoning(text, self._as_summary) for inner in thinking if (text := _get(inner, "text")))
            for inner in _get(part, "summary") or ():
                yield Reasoning(_get(inner, "text") or "", self._summaries, _get(inner, "signature"))

    def _call(self, position: int, call: Any) -> ToolCall:
        index, call_id = _get(call, "index"), _get(call, "id") or ""
        if index is None:
            # Such calls come complete, several in one chunk, and not always with ids.
            index = position
        function, custom = _get(call, "function"), _get(call, "custom")
        name, arguments = _get(function, "name") or "", _get(function, "arguments") or ""
        if custom:
            name, arguments = _get(custom, "name") or "", _get(custom, "input") or ""
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        known = self._calls.get(index)
        if known is None or known.is_another(call_id, name, arguments):
            known = self._calls[index] = _CallSoFar(known.number + 1 if known else 0)
            self.said += _CALL
        known.add(call_id, name, arguments)
        self.said += len(arguments)
        key = (index, known.number)
        arguments = self._mender.feed(key, arguments)
        if custom:
            arguments = self._as_json(key, arguments)
        return ToolCall(key, name, call_id, arguments)

    def _as_json(self, key: tuple[int, int], text: str) -> str:
        """Return a piece of a custom tool's input as a piece of JSON arguments, as other calls have."""
        opening = "" if key in self._custom else f'{{"{CUSTOM_INPUT}":"'
        self._custom.add(key)
        return opening + orjson.dumps(text).decode()[1:-1]


def _weight(part: Text | Reasoning) -> int:
    """Return the characters of a part of a content list."""
    return len(part.text) + (len(part.signature or "") if isinstance(part, Reasoning) else 0)


def _logprob_weight(logprob: dict[str, Any]) -> int:
    """Return the approximate size of a token's logprobs as JSON, in characters."""
    tops = logprob["top_logprobs"]
    return _ENTRY * (1 + len(tops)) + len(logprob["bytes"]) + sum(len(top["bytes"]) for top in tops)


def _is_object(text: str) -> bool:
    if not (text.startswith("{") and text.endswith("}")):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _thoughts(fields: dict[str, Any]) -> Iterable[tuple[str, str | None]]:
    """Return pieces of reasoning as (text, None), and their signatures as ("", signature)."""
    plain = fields.get("reasoning_content") or fields.get("reasoning")
    blocks = fields.get("thinking_blocks")
    if not isinstance(plain, str):
        plain = ""
    if not blocks:
        return ((plain, None),)
    pieces = [(_get(block, "thinking") or "", _get(block, "signature")) for block in blocks]
    if plain and not any(text for text, _ in pieces):
        pieces.insert(0, (plain, None))
    return [each for text, signature in pieces for each in ((text, None), ("", signature)) if any(each)]


def _signature(call: Any) -> str | None:
    """Return the signature that some providers put on a call instead of on its reasoning."""
    for name in ("extra_content", "provider_specific_fields"):
        if extra := _get(call, name):
            found = _get(_get(extra, "google") or extra, "thought_signature")
            return found if isinstance(found, str) else None
    return None


def _details(fields: dict[str, Any]) -> list[tuple[bool, str]]:
    """Return the texts in `reasoning_details`, each as (is summary, text)."""
    found = [(_get(each, "summary"), _get(each, "text")) for each in fields.get("reasoning_details") or ()]
    return [(bool(summary), summary or text) for summary, text in found if summary or text]


def _annotation(value: Any) -> Iterator[Annotation]:
    """Yield a chat annotation `{type: url_citation, url_citation: {...}}` in the flat form of the Responses API."""
    citation = _get(value, "url_citation")
    if citation is None:
        return
    names = ("url", "title", "start_index", "end_index")
    flat = {"type": "url_citation"} | {name: _get(citation, name) for name in names}
    if all(value is not None for value in flat.values()):
        yield Annotation(flat)


def _logprobs(choice: Any) -> list[dict[str, Any]]:
    return [_logprob(entry) for entry in choice.logprobs.content or ()]


def _is_half(logprob: dict[str, Any]) -> bool:
    """Return whether the token is part of a character; it is then sent with the token that completes the character."""
    try:
        bytes(logprob["bytes"]).decode()
    except UnicodeDecodeError:
        return True
    return False


def _logprob(entry: Any) -> dict[str, Any]:
    tops = (_get(entry, "top_logprobs") or ())[:_MOST_TOPS]
    return _token(entry) | {"top_logprobs": [_token(top) for top in tops]}


def _token(entry: Any) -> dict[str, Any]:
    token = _get(entry, "token")
    encoded = _get(entry, "bytes")
    value = _get(entry, "logprob")
    return {
        "token": token,
        "bytes": list(token.encode()) if encoded is None else list(encoded),
        # JSON has no -inf and NaN, which some servers send for an impossible token; others send null.
        "logprob": value if value is not None and value >= _LOWEST_LOGPROB else _LOWEST_LOGPROB,
    }


def _usage(usage: Any) -> Usage:
    of_prompt, of_completion = _get(usage, "prompt_tokens_details"), _get(usage, "completion_tokens_details")
    return Usage(
        input_tokens=_get(usage, "prompt_tokens") or 0,
        output_tokens=_get(usage, "completion_tokens") or 0,
        cached_tokens=_get(of_prompt, "cached_tokens") or 0,
        cache_write_tokens=_get(of_prompt, "cache_write_tokens") or 0,
        reasoning_tokens=_get(of_completion, "reasoning_tokens") or 0,
    )
