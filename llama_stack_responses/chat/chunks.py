"""Turn chat chunks into deltas; differences between providers are handled here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, Final

import orjson

from ..core.errors import ApiError, UnusableAnswerError, Upstream
from ..core.surrogates import without_surrogates
from ..items.kinds.custom_tool_call import CUSTOM_INPUT
from ..logs import get_logger
from ..stream.deltas import (
    Annotation,
    Delta,
    Finish,
    FinishReason,
    Origin,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
)
from .call_fragments import OTHER_MESSAGE, CallFragments, Fragment
from .finish_reasons import guessed_meaning, may_end, meaning_of, reason_of, worse
from .malformed_calls import ARGUMENTS, WrittenCall, failed_call
from .pieces import (
    FEW,
    PIECE_CHARACTERS,
    ContentPart,
    call_parts,
    content_parts,
    entries,
    few,
    flattened,
    member,
    mended,
    sliced,
    text,
)
from .profile import Profile
from .reasoning_entries import (
    BLOCKS,
    DETAILS,
    MESSAGE,
    OPAQUE,
    PARTS,
    TEXT_FIELDS,
    TOOL_CALL,
    ReasoningEntries,
    encoded,
    is_sealed,
    signatures_in,
    text_name,
    texts_of,
)
from .repeated_arguments import CallArguments
from .repeated_text import RepeatedText, max_extension
from .reported_usage import is_empty, reported_usage, usage_of_chunk
from .split_surrogates import SurrogateJoiner, is_whole
from .think_tags import ThinkTagSplitter

logger = get_logger(__name__)

_REASONING_TEXTS: Final = ("text", "content", "thinking", "reasoning", "summary")
"""Members of an object of reasoning that may have its text."""
_CUT: Final = frozenset({"length", "content_filter"})
"""Reasons with which a call may be incomplete."""
_MAX_LOGPROB: Final = 9999.0
_CALL_CHARACTERS: Final = 8192
"""Characters counted for a call in addition to its arguments, since it creates an item and an output."""
_ENTRY_CHARACTERS: Final = 64
"""Characters counted for an annotation, a token's logprob or an alternative, in addition to its text."""
_SIGNATURE_CHARACTERS: Final = 1024
"""Characters counted for a signature in addition to its own: it is kept with its position in the reasoning."""
_MAX_CALLS: Final = 256
"""Maximum calls of one round."""
_MAX_INDEX: Final = 2**31 - 1
"""Maximum of a position in an annotation."""
_MAX_TOP_LOGPROBS: Final = 20
"""Maximum alternatives to a token: clients cannot request more."""
_MAX_STALLS: Final = 6250
"""Maximum number of consecutive checks that find no new content."""
_TOKEN_CHARACTERS: Final = 256
"""Maximum characters, and bytes, of a token with a logprob; no tokenizer has longer ones."""
_CALL_FIELDS: Final = ("index", "type", "function")
_REASONING: Final = Origin("reasoning")
_BOTH: Final = Origin("reasoning_content reasoning")
_COPILOT: Final = Origin("reasoning_text")
_ENTRIES_ONLY: Final = Origin("")
_BLOCKS_ONLY: Final = Origin(BLOCKS)
_PARTS: Final = Origin(PARTS)
_THINK_TAGS: Final = Origin("think_tags")
"""Where the text of reasoning came."""
_SIGNATURE_IN_ID: Final = "__thought__"
"""What LiteLLM puts between the id of a call and Gemini's signature, which is part of the id for its clients."""
_ERROR_CHARACTERS: Final = 1_000
"""Characters of the words of an error that are passed on."""
_MAX_HALF_TOKENS: Final = 16
"""Maximum tokens held back as parts of one character, which has at most four bytes."""


@dataclass(slots=True)
class _Extended:
    """What the next chunk may extend.

    Attributes:
        name: the field of a chunk's delta that has the text.
        choice: the index of the choice.
        index: the index of the call whose arguments are the text.
    """

    name: str
    choice: int
    index: int | None = None

    def text(self, raw: Any) -> str | None:
        """Return the text in a chunk's JSON; None if the chunk has anything else that counts."""
        choices = raw.get("choices") if type(raw) is dict and raw.get("usage") is None else None
        if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
            return None
        if may_end(choice, raw) or choice.get("logprobs") or choice.get("index", 0) != self.choice:
            return None
        delta = choice.get("delta")
        if type(delta) is not dict or (
            len(delta) > 1 and any(delta[name] for name in delta if name not in (self.name, "role"))
        ):
            return None
        text = delta.get(self.name)
        if self.index is not None:
            text = self._arguments(text)
        return text if type(text) is str else None

    def _arguments(self, calls: Any) -> Any:
        """Return the arguments of the only call of a chunk, if it has nothing else."""
        if type(calls) is not list or len(calls) != 1 or type(call := calls[0]) is not dict:
            return None
        function = call.get("function")
        if type(function) is not dict or call.get("index") != self.index:
            return None
        if any(call[name] for name in call if name not in _CALL_FIELDS):
            return None
        if len(function) > 1 and any(function[name] for name in function if name != "arguments"):
            return None
        return function.get("arguments")


class OutputLimitReached(Exception):  # noqa: N818 (a normal end of a round)
    """The round has reached its limit on output, and ends like one that reached its limit on tokens."""


class ChunkReader:
    """Reads the chunks of one model round.

    It supports: reasoning in `TEXT_FIELDS`, `thinking_blocks`, a content list or between inline tags; refusals; calls
    in all forms of `call_fragments.py` and `repeated_arguments.py`; calls of custom tools; usage in a separate chunk or
    in every chunk (the last one counts); chunks without choices; null content.

    Args:
        profile: how the model's answers are read.
        max_characters: maximum characters of the round.
        summaries: whether the client asked for summaries of the reasoning. These are what the provider sends as such,
            as in OpenRouter's `reasoning_details` or in a content list. If the first piece of reasoning has none, the
            profile may present the text of the reasoning as its summary.
        only_words: whether nothing will be called, so that calls may be incomplete.

    Attributes:
        service_tier: the provider's name for the tier that served the round, if it reported one.
        characters: number of characters read so far, including those that are hidden from the client.
        extensions: number of chunks whose text was taken from their JSON.
        max_characters: the argument.
        max_extension: maximum characters of a text that extends the last delta: a longer one may repeat the text so
            far. It is 0 after a chunk was read, until `extension` or `resume` finds out what the next one may extend.
        open_arguments: the arguments of a call that `extension` extends; None if it extends another text.
        is_opening: whether the text that `extension` extends has no complete beginning yet.
    """

    __slots__ = (
        "_as_summary",
        "_calls",
        "_choice",
        "_custom",
        "_entries",
        "_error",
        "_extended",
        "_extended_text",
        "_finish",
        "_half_tokens",
        "_in_messages",
        "_joiner",
        "_last",
        "_late",
        "_only_words",
        "_others",
        "_others_call",
        "_own_summaries",
        "_resumed",
        "_said",
        "_seen",
        "_signed",
        "_splitter",
        "_spoken",
        "_stalls",
        "_summaries",
        "_thought",
        "_timings",
        "_usage",
        "characters",
        "extensions",
        "is_opening",
        "max_characters",
        "max_extension",
        "open_arguments",
        "service_tier",
    )

    def __init__(
        self, profile: Profile, max_characters: int, *, summaries: bool = False, only_words: bool = False
    ) -> None:
        self.service_tier: str | None = None
        self.characters = 0
        self.extensions = 0
        self.max_characters = max_characters
        self.max_extension = 0
        self.open_arguments: CallArguments | None = None
        self.is_opening = False
        self._seen = 0
        self._stalls = 0
        self._only_words = only_words
        self._summaries = summaries
        self._own_summaries: bool | None = None if summaries else False
        self._as_summary = summaries and profile.reasoning_summary == "text"
        self._splitter = ThinkTagSplitter(profile.inline_thinking) if profile.inline_thinking else None
        self._finish: str | None = None
        self._error: Any = None  # of the choice
        self._choice: int | None = None  # the index of the choice that is the answer
        self._others = self._others_call = False  # whether there are other choices, and whether these have calls
        self._spoken = False
        self._in_messages = False  # whether whole messages, not deltas, have begun the answer
        self._usage: Any = None
        self._timings: Any = None
        self._joiner = SurrogateJoiner()
        self._calls: CallFragments | None = None
        self._last: tuple[Delta, dict[str, Any]] | None = None
        self._extended: _Extended | None = None
        self._resumed: _Extended | None = None  # the last form of an extension
        self._said, self._thought = RepeatedText(), RepeatedText()
        self._entries = ReasoningEntries()
        self._late: dict[str, None] | None = None
        self._signed: set[tuple[Hashable, str]] | None = None
        self._extended_text: tuple[RepeatedText, int] | None = None  # with the characters of the round at that time
        self._custom: dict[Hashable, None] = {}  # a set: an empty dict takes less memory
        self._half_tokens: list[dict[str, Any]] = []

    def read(self, chunk: Any) -> list[Delta] | Iterator[Delta]:
        """Return the deltas of one chunk, in order.

        Those of a large chunk are built while they are taken, which must be before the next chunk is read.

        Raises:
            OutputLimitReached: the round has exceeded a limit.
            ApiError: the chunk is invalid.
        """
        self._resumed, self._extended = self._extended or self._resumed, None
        self._last = self.open_arguments = None
        self.is_opening, self.max_extension = False, 0
        self._count_extended()
        if chunk.usage is not None:
            self._note_usage(chunk, chunk.usage)
        if not chunk.choices:
            self._note_reason(chunk, None)
            return []
        choice = chunk.choices[0]
        if (getattr(choice, "index", 0) or 0) != self._choice and (choice := self._chosen(chunk.choices)) is None:
            return []
        extra = getattr(choice, "__pydantic_extra__", None)
        delta = choice.delta
        if choice.finish_reason or extra or _has_more(chunk) or _has_more(delta):
            self._note_end(chunk, choice, extra)
        if delta is None:
            return []
        fields = self._fields(extra, delta)
        deltas = self._deltas(fields, choice)
        if self._calls and deltas and not fields.get("tool_calls") and not _are_marks(deltas):
            deltas = self._behind_calls(self._calls, deltas)
        if type(deltas) is list and len(deltas) == 1:
            self._last = deltas[0], fields
        return deltas

    @property
    def is_finished(self) -> bool:
        """Whether the server has said that the answer is over."""
        return self._finish is not None

    @property
    def has_calls(self) -> bool:
        """Whether the model has called something."""
        return self._calls is not None

    @property
    def has_whole_calls(self) -> bool:
        """Whether the model has called something, and each call is whole."""
        return self._calls is not None and self._calls.are_whole

    def end_with(self, calls: Iterable[WrittenCall]) -> Iterable[Delta]:
        """Return the deltas of whole calls with which the round ends, though the server could not read them."""
        self._finish = "tool_calls"
        out: list[Any] = []
        self._settle(out)
        self._all_calls(out, [{"index": place, "function": call._asdict()} for place, call in enumerate(calls)])
        return flattened(out)

    @property
    def progress(self) -> int:
        """A number that a chunk increases if it says something, also if that is kept until the next chunk."""
        return self.characters + self._said.kept + self._thought.kept

    def _note_end(self, chunk: Any, choice: Any, extra: Any) -> None:
        """Note how the answer ends, with which it may go on: the worst of its reasons counts."""
        self._note_error(member(extra, "error"))
        self._note_reason(chunk, choice)

    def _note_reason(self, chunk: Any, choice: Any) -> None:
        if reason := reason_of(chunk, choice):
            self._finish = worse(self._finish, reason)
            given = member(choice, "finish_reason")
            self._note_error(member(choice, "error") or (text(given, "message") and given))
            self.service_tier = text(chunk, "service_tier") or None
            self._note_usage(chunk, usage_of_chunk(chunk))

    def _chosen(self, choices: Sequence[Any]) -> Any:
        """Return the choice that is the answer, the first one that has more than reasoning; None if it is not there.

        Some proxies count the blocks of an answer as choices.
        """
        own = next((each for each in choices if _index(each) == self._choice), None)
        if own is not None:
            return own
        if not (self._spoken or self._calls):
            self._choice = _index(choices[0])
            return choices[0]
        self._others_call = self._others_call or any(member(each.delta, "tool_calls") for each in choices)
        self._others = self._others or self._others_call or any(member(each.delta, "content") for each in choices)
        return None if self._others else choices[0]

    def _note_error(self, error: Any) -> None:
        if error and not self._error and (not isinstance(error, dict) or any(error.values())):
            self._error = error

    def _note_usage(self, chunk: Any, usage: Any) -> None:
        if usage is not None and not (self._usage and is_empty(usage)):
            self._usage, self._timings = usage, getattr(chunk, "timings", None)

    def extension(self, raw: Any) -> str | None:
        """Return the text of a chunk's JSON if the chunk does nothing but extend the last delta; None otherwise.

        The caller may take the text as a delta of its own, if it has 1 to `max_extension` characters and
        `characters` are at most `max_characters`, and then counts it. If there are `open_arguments`, it asks whether
        the text extends them, and appends it there too. If it `is_opening`, it passes the text to `open_with`.
        """
        extended = self._extended
        if extended is None:
            last, self._last = self._last, None
            if last is None or self._joiner.is_buffering:
                return None
            self._extended = extended = self._extendable(*last)
        if extended is None:
            return None
        text = extended.text(raw)
        return text if text is not None and (text.isascii() or is_whole(text)) else None

    def resume(self, size: int) -> bool:
        """Return whether a chunk with a text of this size may extend the last delta as others extended one before it.

        It has the form of those, and so have all chunks that were read since.
        """
        last, resumed = self._last, self._resumed
        if self._extended is not None or last is None or resumed is None or self._joiner.is_buffering:
            return False
        if (extended := self._extendable(*last)) != resumed:
            self.open_arguments, self.max_extension = None, 0
            return False
        self._last, self._extended = None, extended
        return 0 < size <= self.max_extension

    def _extendable(self, delta: Delta, fields: dict[str, Any]) -> _Extended | None:
        """Return how the next chunk may extend this delta, the only one of a chunk with these fields."""
        choice = self._choice or 0
        match delta:
            case Text(logprobs=None) if self._splitter is None and not self._half_tokens:
                return _Extended("content", choice) if self._extends(self._said) else None
            case Reasoning(signature=None) if self._own_summaries is False:
                name = next((name for name in TEXT_FIELDS if fields.get(name)), "reasoning")
                return (
                    _Extended(name, choice) if type(fields.get(name)) is str and self._extends(self._thought) else None
                )
            case ToolCall(key=(int(index), _), arguments=arguments) if arguments and delta.key not in self._custom:
                self.max_extension = PIECE_CHARACTERS
                self.open_arguments = self._calls.extendable(delta.key) if self._calls else None
                return _Extended("tool_calls", choice, index) if self.open_arguments else None
        return None

    def _count_extended(self) -> None:
        """Count the characters by which chunks have extended a text; errors as for `check_size`."""
        if self._extended_text:
            extended, characters = self._extended_text
            self._extended_text = None
            if more := self.characters - characters:
                extended.extend(more)
        if self.characters > self.max_characters:
            raise self.cut()

    def _extends(self, text: RepeatedText) -> bool:
        """Return whether the next chunks may extend a text without being compared with it, if they are shorter."""
        if not text.is_extendable:
            return False
        self.max_extension = min(PIECE_CHARACTERS, text.max_extension)
        self._extended_text = text, self.characters
        self.is_opening = not text.is_begun
        return True

    def open_with(self, text: str) -> None:
        """Add the text of an extension, which has been counted, to the beginning of the text that it extends."""
        assert self._extended_text
        extended, characters = self._extended_text
        extended.begin(text)
        self.max_extension = min(PIECE_CHARACTERS, max_extension(extended.size + self.characters - characters))
        self.is_opening = not extended.is_begun

    def cut(self) -> OutputLimitReached:
        """End the round here as incomplete, and ignore the following chunks."""
        self._finish = worse(self._finish, "length")
        return OutputLimitReached()

    def check_size(self) -> None:
        """Check, within a large chunk, whether the round has exceeded its limit.

        Raises:
            OutputLimitReached: it has.
        """
        if self.characters > self.max_characters:
            raise self.cut()

    def check_progress(self) -> None:
        """Check, every few chunks, whether they had content.

        Raises:
            ApiError: the stream has had no content for too long.
        """
        self._stalls = self._stalls + 1 if self.characters == self._seen else 0
        self._seen = self.characters
        if self._stalls > _MAX_STALLS:
            raise ApiError(502, "The inference provider keeps sending chunks without content.")

    def end(self) -> list[Delta]:
        """Return the last deltas of the round, ending with `Finish`.

        Raises:
            ApiError: the stream ended without an answer, within a call, or with a reason that reports a failure.
        """
        if self._others and (self._finish is None or (self._others_call and not self._calls)):
            raise ApiError(502, "The model server's stream mixes several choices, though one was asked for.")
        reason = self._meaning()
        rest: list[Any] = []
        self._settle(rest)
        if self._splitter:
            rest += self._pieces(self._splitter.end())
        if self._calls:
            self._pass_calls(rest, self._rest_of(self._calls, cut=self._only_words or reason in _CUT))
        rest += [ToolCall(key, arguments='"}') for key in sorted(self._custom, key=str)]
        rest += self._late_marks()
        rest = [*flattened(rest)]
        return [*rest, Finish(reason, reported_usage(self._usage, self._timings))]

    def _rest_of(self, calls: CallFragments, *, cut: bool) -> list[ToolCall]:
        """Return the rest of the calls; errors as for `end`."""
        try:
            return calls.end(cut=cut)
        except UnusableAnswerError as error:
            if self._finish is not None:
                raise
            # The model has not ended its answer: its server did.
            raise ApiError(502, error.message, upstream=Upstream("stream")) from None

    def _fields(self, more: Any, delta: Any) -> dict[str, Any]:
        """Return the members of a delta, or of a message; of one that repeats the deltas, only what they lack.

        Args:
            more: the members of the choice that have no field; None if there are none.
            delta: its delta.

        Raises:
            ApiError: the message has another text than the deltas before it.
        """
        extra = delta.__pydantic_extra__
        fields: dict[str, Any] = delta.__dict__ | extra if extra else delta.__dict__
        if more and more.get("message"):
            if not self.progress:
                self._in_messages = any(fields[name] for name in fields if name != "role")
                self._said.of_messages = self._thought.of_messages = True
            elif not self._in_messages:
                return self._behind_deltas(fields)
        return fields

    def _behind_deltas(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what the members of a whole message add to the deltas: the text and the calls that they lack."""
        content, calls = text(fields, "content"), fields.get("tool_calls")
        has_text = bool(self._said.size or self._said.kept)
        if content and has_text and not self._said.may_have(content):
            raise ApiError(502, OTHER_MESSAGE)
        if calls and (known := self._calls):
            calls = [call for place, call in enumerate(entries(calls)) if known.lacks(_fragment(place, call))]
        return {"content": "" if has_text else content, "tool_calls": calls}

    def _meaning(self) -> FinishReason:
        """Return how the round ended.

        Raises:
            ApiError: as for `end`.
        """
        if self._finish is None:
            return self._without_reason()
        meaning = meaning_of(self._finish)
        if meaning is None:
            meaning = guessed_meaning(self._finish)
            logger.warning("unknown finish_reason %r treated as '%s'", self._finish, meaning)
        if meaning == "malformed_call":
            raise failed_call(f"the model server ended the answer with '{self._finish}'")
        if self._error:
            raise _failure(self._error)
        if meaning == "tool_calls" and not (self._spoken or self._calls or self._only_words):
            # The parsers of some servers lose calls (sglang issue 35564).
            raise failed_call(f"the model server ended the answer with '{self._finish}' and sent no call")
        if meaning == "failed":
            raise ApiError(
                502,
                f"The inference provider aborted the answer: {self._finish}.",
                upstream=Upstream("server_error"),
            )
        return meaning

    def _without_reason(self) -> FinishReason:
        """Return how the round ended without a reason; errors as above. Some servers end an answer with `[DONE]`."""
        if self._error:
            raise _failure(self._error)
        if not (self._spoken or self._calls):  # Reasoning alone is no answer.
            raise ApiError(
                502,
                "The inference provider's stream ended before the answer was finished.",
                upstream=Upstream("stream"),
            )
        return "stop"

    def _deltas(self, fields: dict[str, Any], choice: Any) -> list[Any] | Iterator[Delta]:
        # Each chunk has one of these fields, rarely two, so checking for an absent one must be cheap.
        reasons = (
            fields.get("reasoning_content")
            or fields.get("reasoning")
            or fields.get("reasoning_text")
            or fields.get(BLOCKS)
        )
        out: list[Any] = []
        if reasons or fields.get(DETAILS):
            self._visible_reasoning(out, fields, reasons)
        if content := fields.get("content"):
            self._new_content(out, content, choice)
            self._spoken = True
        elif content == "" and choice.logprobs:
            last = (choice.logprobs.content or ())[-_MAX_HALF_TOKENS:]
            self._half_tokens += [entry for entry in map(_logprob, last) if _is_half(entry)]
            del self._half_tokens[:-_MAX_HALF_TOKENS]
        if fields.get("refusal"):
            self._spoken = True
            out += few(self._refusal(text(fields, "refusal")))
        if annotations := fields.get("annotations"):
            out += few(self._annotations(entries(annotations)))
        if fields.get("extra_content") or fields.get("provider_specific_fields") or fields.get(OPAQUE):
            out += self._signature_of_message(fields)
        if calls := fields.get("tool_calls") or fields.get("function_call"):
            self._settle(out)
            out += self._late_marks()
            self._all_calls(out, calls)
        return out if len(out) <= FEW else flattened(out)

    def _all_calls(self, out: list[Any], calls: Any) -> None:
        """Append the deltas of the calls of a chunk, or of the one in the legacy form."""
        if not isinstance(calls, list | tuple):
            calls = [{"function": calls}]
        if len(calls) > 1 and self._calls and self._calls.repeats([*map(_fragment, count(), calls[:_MAX_CALLS])]):
            return
        self._signed_calls(out, calls) if len(calls) <= FEW else out.extend(few(self._many_calls(calls)))

    def _new_content(self, out: list[Any], content: Any, choice: Any) -> None:
        """Append the deltas of the content of a chunk, without what the chunk repeats."""
        if type(content) is not str:
            self._content(out, content, choice)
            return
        if self._thought.kept or self._entries.is_open:
            self._settle_reasoning(out)
        for part in self._said.take(ContentPart(content, choice.logprobs)):
            self._content(out, part.content, part)

    def _visible_reasoning(self, out: list[Any], fields: dict[str, Any], visible: Any) -> None:
        """Append the deltas of the reasoning of a chunk, without what the chunk repeats."""
        if details := fields.get(DETAILS):
            out += few(self._detailed(fields, entries(details)))
            return
        if self._entries.is_open:
            out += self._end_entry()
        if type(visible) is not str or self._own_summaries or fields.get(BLOCKS):
            self._reasoning_apart(out, fields, visible)
            return
        for part in self._thought.take(ContentPart(visible, None)):
            own = (
                fields
                if part.content is visible
                else {name: part.content for name in fields if fields[name] == visible}
            )
            out += self._reasoning(own, part.content)

    def _reasoning_apart(self, out: list[Any], fields: dict[str, Any], visible: Any) -> None:
        """Append the deltas of reasoning that is no text alone, without the blocks that came before."""
        if self._thought.kept:
            self._settle_reasoning(out)
        if blocks := _blocks(fields):
            new = [block for block in blocks if not self._entries.is_known(block) or not self._has_answer]
            if self._is_repeated("".join(text(block, "thinking") for block in blocks)):
                out += few(self._sealed_blocks(new))
                return
            if not new:
                return
            fields = {**fields, BLOCKS: new}
        self._thought.add("".join(text(block, "thinking") for block in blocks) or _plain_reasoning(fields))
        out += self._reasoning(fields, visible)

    def _sealed_blocks(self, blocks: Iterable[Any]) -> Iterator[Delta]:
        """Yield the deltas of the blocks that are signed or encrypted, and whose texts were shown."""
        for block in blocks:
            entry = encoded(BLOCKS, block) if is_sealed(block) else None
            if entry:
                self.characters += _SIGNATURE_CHARACTERS + len(entry)
                yield from self._mark(entry)

    def _is_repeated(self, thoughts: str) -> bool:
        """Return whether a list behind the answer has all thoughts before it once more."""
        return self._has_answer and self._thought.is_all(thoughts)

    @property
    def _has_answer(self) -> bool:
        return self._spoken or self._calls is not None

    def _repeated(self, place: str, found: Iterable[Any], texts: Iterable[str]) -> Iterator[Delta]:
        """Take what is new of entries whose texts were shown: all without earlier ones, else what is sealed."""
        had_texts = self._entries.have_text
        for entry, said in zip(found, texts, strict=True):
            name = text_name(entry) if isinstance(entry, dict) else None
            if name is None or not had_texts:
                yield from self._entry(place, entry, said, said=False)
            elif is_sealed(entry) and not self._entries.is_known(entry):
                yield from self._entry(place, {**entry, name: ""}, "", said=False)

    def _settle_reasoning(self, out: list[Any]) -> None:
        """Append the deltas of what was kept of the reasoning, which ends here."""
        for part in self._thought.settle():
            out += self._reasoning({"reasoning": part.content}, part.content)
        if self._entries.is_open:
            out += self._end_entry()

    def _settle(self, out: list[Any]) -> None:
        """Append the deltas of what was kept of the texts, which end here."""
        if self._thought.kept or self._entries.is_open:
            self._settle_reasoning(out)
        for part in self._said.settle():
            self._content(out, part.content, part)

    def _reasoning(self, fields: dict[str, Any], visible: Any) -> list[Any]:
        if (
            type(visible) is not str
            or len(visible) > PIECE_CHARACTERS
            or self._own_summaries is not False
            or fields.get("thinking_blocks")
        ):
            return few(self._reasoning_in_parts(fields))
        self.characters += len(visible)
        piece = self._joiner.feed("reasoning", visible)
        return [Reasoning(piece, self._as_summary, origin=_origin(fields))] if piece else []

    def _reasoning_in_parts(self, fields: dict[str, Any]) -> Iterator[Delta]:
        self._decide_summaries(())
        origin = _origin(fields)
        for reasoning, signature, entry in _reasoning_blocks(fields):
            yield from self._reasoning_deltas("reasoning", reasoning, self._as_summary, origin)
            if signature:
                self.characters += _SIGNATURE_CHARACTERS + len(signature)
                yield Reasoning("", self._as_summary, signature)
            elif entry:
                self.characters += _SIGNATURE_CHARACTERS + len(entry)
                yield from self._mark(entry)

    def _decide_summaries(self, texts: Iterable[tuple[bool, str]]) -> None:
        """Decide, with the first reasoning, whether the provider sends summaries."""
        if self._own_summaries is None:
            self._own_summaries = any(is_summary for is_summary, _ in texts)
            self._as_summary = self._as_summary and not self._own_summaries

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
        said = bool(self._own_summaries) or plain in ("", whole)
        if not said:
            yield from self._thoughts(plain, origin)
        for entry, (is_summary, reasoning) in zip(details, texts, strict=True):
            apart = is_summary and bool(self._own_summaries)
            yield from self._entry(DETAILS, entry, reasoning, said=said and not apart)
            if self._own_summaries:
                key = "summary" if is_summary else "reasoning"
                self._thought.add(reasoning)
                yield from self._reasoning_deltas(key, reasoning, is_summary, origin)
            elif said:
                yield from self._thoughts(reasoning, origin)

    def _thoughts(self, value: str, origin: Origin | None) -> Iterator[Delta]:
        """Yield the deltas of a text of reasoning, without what it repeats."""
        for part in self._thought.take(ContentPart(value, None)) if value else ():
            yield from self._reasoning_deltas("reasoning", part.content, self._as_summary, origin)

    def _entry(self, place: str, fragment: Any, reasoning: str, *, said: bool) -> Iterator[Delta]:
        """Take a fragment of an entry; yield the end of the entry before it."""
        if not isinstance(fragment, dict) or (self._entries.is_known(fragment) and text_name(fragment) is None):
            return
        if not self._entries.continues(place, fragment):
            out: list[Any] = []
            self._settle_reasoning(out)
            yield from flattened(out)
            self.characters += _SIGNATURE_CHARACTERS
        self._entries.take(place, fragment, reasoning, said=said)
        if not said:
            self.characters += len(reasoning)

    def _end_entry(self) -> list[Reasoning]:
        is_said, entry = self._entries.is_said, self._entries.end()
        if entry is None:
            return []
        self.characters += len(entry)
        return self._mark(entry, is_said=is_said)

    def _mark(self, entry: str, *, is_said: bool = False) -> list[Reasoning]:
        """Return the delta of an entry; behind text, an entry without text waits, so that the text is not cut."""
        if self._spoken and not (is_said or self._calls):
            self._late = self._late or {}
            self._late[entry] = None
            return []
        call = self._calls.last if self._calls else None
        return [
            Reasoning("", self._as_summary, call_id=call and call[1], origin=Origin(entry=entry, call=call and call[0]))
        ]

    def _late_marks(self) -> list[Reasoning]:
        late, self._late = self._late, None
        return [Reasoning("", origin=Origin(entry=entry)) for entry in late or ()]

    def _signature_of_message(self, fields: dict[str, Any]) -> list[Reasoning]:
        """Return the delta of a signature of the whole message; none if it came before."""
        places = {name: fields.get(name) for name in ("extra_content", "provider_specific_fields", OPAQUE)}
        found = signatures_in(places)
        entry = encoded(MESSAGE, found) if found else None
        return [] if entry is None or self._is_known(None, entry) else self._mark(entry)

    def _reasoning_deltas(
        self, key: str, value: str, is_summary: bool, origin: Origin | None = None
    ) -> Iterator[Delta]:
        for piece in self._joined(key, value):
            yield Reasoning(piece, is_summary, origin=origin)

    def _joined(self, key: str, value: str) -> Iterator[str]:
        """Yield a text of the stream `key` in pieces, and count it."""
        for piece in sliced(value):
            self.characters += len(piece)
            if joined := self._joiner.feed(key, piece):
                yield joined

    def _refusal(self, value: str) -> Iterator[Delta]:
        return map(Refusal, self._joined("refusal", value))

    def _annotations(self, annotations: Iterable[Any]) -> Iterator[Delta]:
        for each in annotations:
            self.characters += _ENTRY_CHARACTERS
            if annotation := _annotation(each):
                self.characters += sum(len(value) for value in annotation.value.values() if isinstance(value, str))
                yield annotation

    def _signed_calls(self, out: list[Any], calls: Iterable[Any], first: int = 0) -> None:
        for position, call in enumerate(calls, first):
            deltas = self._call(position, call)
            custom = bool(member(call, "custom"))
            if signed := _signed_members(call):
                out += self._signature_of_call(signed)
            self._pass_calls(out, deltas, custom=custom)

    def _signature_of_call(self, signed: dict[str, Any]) -> list[Reasoning]:
        """Return the delta of the signature of the call whose fragment came last; none if it came before."""
        assert self._calls
        assert self._calls.last
        key, call_id = self._calls.last
        entry = encoded(TOOL_CALL, signed)
        if entry is None or self._is_known(key[0], entry):
            return []
        signature = text((signed.get("extra_content") or {}).get("google"), "thought_signature")
        usual = signed == {"extra_content": {"google": {"thought_signature": signature}}}
        origin = Origin(entry=None if usual else entry, call=key)
        return [Reasoning("", signature=signature if usual else None, call_id=call_id, origin=origin)]

    def _is_known(self, index: Hashable, entry: str) -> bool:
        """Return whether a signature came before; count a new one."""
        self._signed = self._signed or set()
        if (index, entry) in self._signed:
            return True
        self._signed.add((index, entry))
        self.characters += _SIGNATURE_CHARACTERS + len(entry)
        return False

    def _behind_calls(
        self, calls: CallFragments, deltas: list[Delta] | Iterator[Delta]
    ) -> list[Delta] | Iterator[Delta]:
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

    def _content(self, out: list[Any], content: Any, choice: Any) -> None:
        tokens = choice.logprobs and choice.logprobs.content
        if type(content) is not str or (size := len(content)) > PIECE_CHARACTERS or (tokens and len(tokens) > FEW):
            out.extend(few(self._content_in_parts(content, tokens)))
            return
        self.characters += size
        content = self._joiner.feed("content", content)
        logprobs = _logprobs(choice) if choice.logprobs else None
        if logprobs:
            self.characters += sum(map(_logprob_weight, logprobs))
        if logprobs and self._half_tokens:
            logprobs, self._half_tokens = self._half_tokens + logprobs, []
        if not content:
            self._half_tokens = (logprobs or [])[-_MAX_HALF_TOKENS:]
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
        return [
            Reasoning(text, self._as_summary, origin=_THINK_TAGS) if is_reasoning else Text(text)
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
                self._settle_reasoning(out)
                yield from flattened(out)
                for shown in self._said.take(ContentPart(said, None)):
                    yield from map(Text, self._joined("content", shown.content))
            if (thinking := member(part, "thinking")) is not None:
                yield from self._thinking_part(part, thinking)
            for inner in entries(member(part, "summary") or ()):
                yield from self._reasoning_deltas("summary", text(inner, "text"), self._summaries, _PARTS)
                if signature := _whole_text(inner, "signature"):
                    self.characters += _SIGNATURE_CHARACTERS + len(signature)
                    yield Reasoning("", self._summaries, signature)

    def _thinking_part(self, part: Any, thinking: Any) -> Iterator[Delta]:
        pieces = [thinking] if isinstance(thinking, str) else [text(each, "text") for each in entries(thinking)]
        whole = "".join(pieces)
        if self._is_repeated(whole):
            yield from self._repeated(PARTS, [part], [whole])
            return
        self._thought.add(whole)
        yield from self._entry(PARTS, part, whole, said=True)
        for piece in pieces:
            yield from self._reasoning_deltas("reasoning", piece, self._as_summary, _PARTS)

    def _call(self, position: int, call: Any) -> list[ToolCall]:
        """Return the deltas of a fragment of a call, with its arguments as they came."""
        fragment = _fragment(position, call)
        if self._calls is None:
            self._calls = CallFragments()
        begun = self._calls.begun
        deltas = self._calls.take(fragment)
        self.characters += len(fragment.arguments)
        if self._calls.begun > begun:
            self.characters += _CALL_CHARACTERS
            if self._calls.begun > _MAX_CALLS:
                raise self.cut()
        return deltas

    def _arguments(self, key: Hashable, written: str, *, custom: bool) -> str:
        """Return a piece of a call's arguments; of a custom tool's input, a piece of JSON arguments."""
        written = self._joiner.feed(key, written)
        return self._as_json(key, written) if custom else written

    def _as_json(self, key: Hashable, written: str) -> str:
        """Return a piece of a custom tool's input as a piece of JSON arguments, as other calls have."""
        opening = "" if key in self._custom else f'{{"{CUSTOM_INPUT}":"'
        self._custom[key] = None
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


def _has_more(value: Any) -> bool:
    """Return whether a part of a chunk has members that it has no fields for."""
    return bool(getattr(value, "__pydantic_extra__", None))


def _whole_number(index: Any) -> Any:
    return int(index) if isinstance(index, float) and index.is_integer() else index


def _arguments_in(function: Any) -> Any:
    """Return the arguments of a function, or the input of a custom tool; None if there are none."""
    return next((found for name in ARGUMENTS if (found := member(function, name)) is not None), None)


def _index(choice: Any) -> int:
    return getattr(choice, "index", 0) or 0


def _logprob_weight(logprob: dict[str, Any]) -> int:
    """Return the approximate size of a token's logprobs as JSON, in characters."""
    tops = logprob["top_logprobs"]
    return _ENTRY_CHARACTERS * (1 + len(tops)) + len(logprob["bytes"]) + sum(len(top["bytes"]) for top in tops)


def _failure(error: Any) -> ApiError:
    """Return the error that a choice has (OpenRouter): its `message`, and its `code`, which is an HTTP status."""
    words, code = (text(error, "message") or str(error))[:_ERROR_CHARACTERS], member(error, "code")
    if str(code) == "429":
        return ApiError(429, words, code="rate_limit_exceeded", upstream=Upstream("rate_limit", 429))
    shown = f"The inference provider failed in the middle of its answer: {words}"
    return ApiError(502, shown, upstream=Upstream("server_error", code if isinstance(code, int) else None))


def _blocks(fields: dict[str, Any]) -> Sequence[Any]:
    return entries(fields.get("thinking_blocks") or ())


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


def _signed_members(call: Any) -> dict[str, Any]:
    """Return the members with which some providers sign a call instead of their reasoning."""
    call_id = text(call, "id")
    of_id = {"id": call_id} if _SIGNATURE_IN_ID in call_id else {}
    if isinstance(call, dict):
        return signatures_in(call) | of_id
    extra, of_function = (getattr(each, "__pydantic_extra__", None) for each in (call, getattr(call, "function", None)))
    return signatures_in({**(extra or {}), "function": of_function}) | of_id if extra or of_function else of_id


def _are_marks(deltas: Any) -> bool:
    """Return whether deltas say nothing to the client."""
    return type(deltas) is list and all(type(each) is Reasoning and not each.text for each in deltas)


def _whole_text(value: Any, name: str) -> str:
    """Return a member that is a signature; empty if it is absent or none."""
    return mended(text(value, name)) or ""


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
    tops = (member(entry, "top_logprobs") or ())[:_MAX_TOP_LOGPROBS]
    return _token(entry) | {"top_logprobs": [_token(top) for top in tops]}


def _token(entry: Any) -> dict[str, Any]:
    token, value, encoded = text(entry, "token"), member(entry, "logprob"), member(entry, "bytes")
    token = token[:_TOKEN_CHARACTERS]
    raw = bytes(encoded[:_TOKEN_CHARACTERS]) if isinstance(encoded, list) else token.encode(errors="replace")
    return {
        "token": without_surrogates(token),
        "bytes": list(raw),
        # JSON has no -inf and NaN, which some servers send for an impossible token; others send null.
        "logprob": value if isinstance(value, int | float) and abs(value) <= _MAX_LOGPROB else -_MAX_LOGPROB,
    }
