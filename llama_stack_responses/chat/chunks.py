"""Turn chat chunks into deltas; differences between providers are handled here.

`ChunkReader` reads the members of a chunk in their order. Each part of the answer has a reader of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ..core.errors import ApiError
from ..stream.deltas import Delta, Finish, Reasoning, Text, ToolCall
from .answer_end import AnswerEnd, OutputLimitReached
from .answer_so_far import AnswerSoFar
from .call_fragments import OTHER_MESSAGE
from .call_reader import CallReader
from .extended_text import ExtendedText
from .malformed_calls import WrittenCall
from .pieces import FEW, PIECE_CHARACTERS, entries, few, flattened, member, text
from .profile import Profile
from .reasoning_entries import BLOCKS, DETAILS, OPAQUE, TEXT_FIELDS
from .reasoning_reader import ReasoningReader
from .repeated_arguments import CallArguments
from .repeated_text import RepeatedText, max_extension
from .split_surrogates import is_whole
from .text_reader import TextReader

_CUT: Final = frozenset({"length", "content_filter"})
"""Reasons with which a call may be incomplete."""
_MAX_STALLS: Final = 6250
"""Maximum number of consecutive checks that find no new content."""


class ChunkReader:
    """Reads the chunks of one model round.

    It supports: reasoning in all forms of `reasoning_reader.py`, or between inline tags; refusals; calls in all forms
    of `call_reader.py`; usage in a separate chunk or in every chunk (the last one counts); chunks without choices; null
    content.

    Args:
        profile: how the model's answers are read.
        max_characters: maximum characters of the round.
        summaries: whether the client asked for summaries of the reasoning. These are what the provider sends as such,
            as in OpenRouter's `reasoning_details` or in a content list. If the first piece of reasoning has none, the
            profile may present the text of the reasoning as its summary.
        only_words: whether nothing will be called, so that calls may be incomplete.

    Attributes:
        answer: the answer so far, also without those chunks that `read` did not get.
        extensions: number of chunks whose text was taken from their JSON.
        max_characters: the argument.
        max_extension: maximum characters of a text that extends the last delta: a longer one may repeat the text so
            far. It is 0 after a chunk was read, until `extension` or `resume` finds out what the next one may extend.
        open_arguments: the arguments of a call that `extension` extends; None if it extends another text.
        is_opening: whether the text that `extension` extends has no complete beginning yet.
    """

    __slots__ = (
        "_calls",
        "_choice",
        "_end",
        "_extended",
        "_extended_text",
        "_in_messages",
        "_last",
        "_only_words",
        "_others",
        "_others_call",
        "_reasoning",
        "_resumed",
        "_said",
        "_seen",
        "_stalls",
        "_text",
        "_thought",
        "answer",
        "extensions",
        "is_opening",
        "max_characters",
        "max_extension",
        "open_arguments",
    )

    def __init__(
        self, profile: Profile, max_characters: int, *, summaries: bool = False, only_words: bool = False
    ) -> None:
        self.answer = answer = AnswerSoFar()
        self.extensions = 0
        self.max_characters = max_characters
        self.max_extension = 0
        self.open_arguments: CallArguments | None = None
        self.is_opening = False
        self._seen = 0
        self._stalls = 0
        self._only_words = only_words
        self._end = AnswerEnd(answer)
        as_summary = summaries and profile.reasoning_summary == "text"
        self._reasoning = ReasoningReader(answer, summaries=summaries, as_summary=as_summary)
        self._text = TextReader(answer, self._reasoning, profile.inline_thinking)
        self._calls = CallReader(answer, self._reasoning, self._end)
        self._said, self._thought = self._text.said, self._reasoning.said
        self._choice: int | None = None  # the index of the choice that is the answer
        self._others = self._others_call = False  # whether there are other choices, and whether these have calls
        self._in_messages = False  # whether whole messages, not deltas, have begun the answer
        self._last: tuple[Delta, dict[str, Any]] | None = None
        self._extended: ExtendedText | None = None
        self._resumed: ExtendedText | None = None  # the last form of an extension
        self._extended_text: tuple[RepeatedText, int] | None = None  # with the characters of the round at that time

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
            self._end.note_usage(chunk, chunk.usage)
        if not chunk.choices:
            self._end.note_reason(chunk, None)
            return []
        choice = chunk.choices[0]
        if (getattr(choice, "index", 0) or 0) != self._choice and (choice := self._chosen(chunk.choices)) is None:
            return []
        extra = getattr(choice, "__pydantic_extra__", None)
        delta = choice.delta
        if choice.finish_reason or extra or _has_more(chunk) or _has_more(delta):
            self._end.note(chunk, choice, extra)
        if delta is None:
            return []
        fields = self._fields(extra, delta)
        deltas = self._deltas(fields, choice)
        if self.answer.calls and deltas and not fields.get("tool_calls") and not _are_marks(deltas):
            deltas = self._calls.before(self.answer.calls, deltas)
        if type(deltas) is list and len(deltas) == 1:
            self._last = deltas[0], fields
        return deltas

    @property
    def is_finished(self) -> bool:
        """Whether the server has said that the answer is over."""
        return self._end.reason is not None

    @property
    def has_calls(self) -> bool:
        """Whether the model has called something."""
        return self.answer.calls is not None

    @property
    def has_whole_calls(self) -> bool:
        """Whether the model has called something, and each call is whole."""
        return self.answer.calls is not None and self.answer.calls.are_whole

    def end_with(self, calls: Iterable[WrittenCall]) -> Iterable[Delta]:
        """Return the deltas of whole calls with which the round ends, though the server could not read them."""
        self._end.reason = "tool_calls"
        out: list[Any] = []
        self._text.settle(out)
        self._calls.take(out, [{"index": place, "function": call._asdict()} for place, call in enumerate(calls)])
        return flattened(out)

    @property
    def progress(self) -> int:
        """A number that a chunk increases if it says something, also if that is kept until the next chunk."""
        return self.answer.characters + self._said.kept + self._thought.kept

    @property
    def characters(self) -> int:
        """The number of characters read so far, including those that are hidden from the client."""
        return self.answer.characters

    @property
    def service_tier(self) -> str | None:
        """The provider's name for the tier that served the round, if it reported one."""
        return self._end.service_tier

    def _chosen(self, choices: Sequence[Any]) -> Any:
        """Return the choice that is the answer, the first one that has more than reasoning; None if it is not there.

        Some proxies count the blocks of an answer as choices.
        """
        own = next((each for each in choices if _index(each) == self._choice), None)
        if own is not None:
            return own
        if not self.answer.has_begun:
            self._choice = _index(choices[0])
            return choices[0]
        self._others_call = self._others_call or any(member(each.delta, "tool_calls") for each in choices)
        self._others = self._others or self._others_call or any(member(each.delta, "content") for each in choices)
        return None if self._others else choices[0]

    def extension(self, raw: Any) -> str | None:
        """Return the text of a chunk's JSON if the chunk does nothing but extend the last delta; None otherwise.

        The caller may take the text as a delta of its own, if it has 1 to `max_extension` characters and
        `characters` are at most `max_characters`, and then counts it. If there are `open_arguments`, it asks whether
        the text extends them, and appends it there too. If it `is_opening`, it passes the text to `open_with`.
        """
        extended = self._extended
        if extended is None:
            last, self._last = self._last, None
            if last is None or self.answer.joiner.is_buffering:
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
        if self._extended is not None or last is None or resumed is None or self.answer.joiner.is_buffering:
            return False
        if (extended := self._extendable(*last)) != resumed:
            self.open_arguments, self.max_extension = None, 0
            return False
        self._last, self._extended = None, extended
        return 0 < size <= self.max_extension

    def _extendable(self, delta: Delta, fields: dict[str, Any]) -> ExtendedText | None:
        """Return how the next chunk may extend this delta, the only one of a chunk with these fields."""
        choice = self._choice or 0
        match delta:
            case Text(logprobs=None) if self._text.splitter is None and not self._text.half_tokens:
                return ExtendedText("content", choice) if self._extends(self._said) else None
            case Reasoning(signature=None) if self._reasoning.own_summaries is False:
                name = next((name for name in TEXT_FIELDS if fields.get(name)), "reasoning")
                return (
                    ExtendedText(name, choice)
                    if type(fields.get(name)) is str and self._extends(self._thought)
                    else None
                )
            case ToolCall(key=(int(index), _), arguments=arguments) if (
                arguments and delta.key not in self._calls.custom
            ):
                self.max_extension = PIECE_CHARACTERS
                self.open_arguments = self.answer.calls.extendable(delta.key) if self.answer.calls else None
                return ExtendedText("tool_calls", choice, index) if self.open_arguments else None
        return None

    def _count_extended(self) -> None:
        """Count the characters by which chunks have extended a text; errors as for `check_size`."""
        if self._extended_text:
            extended, characters = self._extended_text
            self._extended_text = None
            if more := self.answer.characters - characters:
                extended.extend(more)
        if self.answer.characters > self.max_characters:
            raise self.cut()

    def _extends(self, text: RepeatedText) -> bool:
        """Return whether the next chunks may extend a text without being compared with it, if they are shorter."""
        if not text.is_extendable:
            return False
        self.max_extension = min(PIECE_CHARACTERS, text.max_extension)
        self._extended_text = text, self.answer.characters
        self.is_opening = not text.is_begun
        return True

    def open_with(self, text: str) -> None:
        """Add the text of an extension, which has been counted, to the beginning of the text that it extends."""
        assert self._extended_text
        extended, characters = self._extended_text
        extended.begin(text)
        self.max_extension = min(PIECE_CHARACTERS, max_extension(extended.size + self.answer.characters - characters))
        self.is_opening = not extended.is_begun

    def cut(self) -> OutputLimitReached:
        """End the round here as incomplete, and ignore the following chunks."""
        return self._end.cut()

    def check_size(self) -> None:
        """Check, within a large chunk, whether the round has exceeded its limit.

        Raises:
            OutputLimitReached: it has.
        """
        if self.answer.characters > self.max_characters:
            raise self.cut()

    def check_progress(self) -> None:
        """Check, every few chunks, whether they had content.

        Raises:
            ApiError: the stream has had no content for too long.
        """
        self._stalls = self._stalls + 1 if self.answer.characters == self._seen else 0
        self._seen = self.answer.characters
        if self._stalls > _MAX_STALLS:
            raise ApiError(502, "The inference provider keeps sending chunks without content.")

    def end(self) -> list[Delta]:
        """Return the last deltas of the round, ending with `Finish`.

        Raises:
            ApiError: the stream ended without an answer, within a call, or with a reason that reports a failure.
        """
        if self._others and (self._end.reason is None or (self._others_call and not self.answer.calls)):
            raise ApiError(502, "The model server's stream mixes several choices, though one was asked for.")
        reason = self._end.meaning(only_words=self._only_words)
        rest: list[Any] = []
        self._text.settle(rest)
        rest += self._text.end()
        rest += self._calls.end(cut=self._only_words or reason in _CUT)
        rest += self._reasoning.late_marks()
        return [*flattened(rest), Finish(reason, self._end.usage)]

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
        content = text(fields, "content")
        has_text = bool(self._said.size or self._said.kept)
        if content and has_text and not self._said.may_have(content):
            raise ApiError(502, OTHER_MESSAGE)
        return {"content": "" if has_text else content, "tool_calls": self._calls.lacking(fields.get("tool_calls"))}

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
            self._reasoning.take(out, fields, reasons)
        if content := fields.get("content"):
            self._text.take(out, content, choice)
            self.answer.spoken = True
        elif content == "" and choice.logprobs:
            self._text.without_text(choice)
        if fields.get("refusal"):
            self.answer.spoken = True
            out += few(self._text.refusal(text(fields, "refusal")))
        if annotations := fields.get("annotations"):
            out += few(self._text.annotations(entries(annotations)))
        if fields.get("extra_content") or fields.get("provider_specific_fields") or fields.get(OPAQUE):
            out += self._reasoning.signature_of_message(fields)
        if calls := fields.get("tool_calls") or fields.get("function_call"):
            self._text.settle(out)
            out += self._reasoning.late_marks()
            self._calls.take(out, calls)
        return out if len(out) <= FEW else flattened(out)


def _has_more(value: Any) -> bool:
    """Return whether a part of a chunk has members that it has no fields for."""
    return bool(getattr(value, "__pydantic_extra__", None))


def _index(choice: Any) -> int:
    return getattr(choice, "index", 0) or 0


def _are_marks(deltas: Any) -> bool:
    """Return whether deltas say nothing to the client."""
    return type(deltas) is list and all(type(each) is Reasoning and not each.text for each in deltas)
