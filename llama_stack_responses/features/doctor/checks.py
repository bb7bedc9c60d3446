"""The checks: what a model server is asked, and what its answers show.

A new check is one `Check` and its place in `CHECKS`; nothing else has to know it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...chat.adaptation.adaptation import Step
from ...chat.adaptation.enforced import CALL, FORMAT, SCHEMA
from ...chat.adaptation.json_answers import json_texts
from ...chat.adaptation.refusal import RefusedError
from ...chat.finish_reasons import meaning_of
from ...chat.reasoning_entries import TEXT_FIELDS
from ...core.errors import ApiError, TooLongError
from ...core.types import Json
from .answer import Answer
from .report import Outcome
from .requests import (
    ASKED_FOR_JSON,
    ASKED_TO_PAINT,
    BRUSH,
    CACHED,
    COUNT,
    FEW,
    HELLO,
    HINTS,
    JSON_OBJECT,
    JSON_SCHEMA,
    LIMIT,
    LONG,
    ODD_BRUSH,
    RESULTS,
    RULER,
    SAMPLING,
    SPEED,
    STRICT_BRUSH,
    TOGETHER,
    image,
    says,
)

_FEW_WORDS: Final = 160
"""Characters that an answer of few tokens does not exceed."""
_UNKNOWN_CONTEXT: Final = 8_192
"""Tokens that a model of unknown context is sent, with some more."""
_MAX_CONTEXT: Final = 131_072
"""Tokens that are sent at most: a longer prompt takes minutes, or costs."""
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when a check begins.

    Attributes:
        first: the first answer of the model; None before it.
        context_length: the tokens of its context, if the server lists them or the operator says them.
    """

    first: Answer | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What answers show. An adapted request that works is a finding of its own.

    Attributes:
        outcome: it works, it is lost, or that cannot be told.
        note: what else they show.
    """

    outcome: Outcome
    note: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a check has to judge.

    Attributes:
        answers: the answers to its requests, in order; the first answer of the model, if it has no requests.
        changed: the kinds of changes that the requests got, and the names of what was dropped.
        situation: what was known before.
    """

    answers: Sequence[Answer]
    changed: frozenset[str]
    situation: Situation

    @property
    def answer(self) -> Answer:
        """The first answer."""
        return self.answers[0]


type Judge = Callable[[Evidence], Verdict]


def _unhelped(error: ApiError) -> Verdict:
    """Judge an error against which no change of the request helps."""
    match error:
        case TooLongError():
            return Verdict("unclear", "the request is too long for this model")
        case RefusedError():
            return Verdict("lost", error.refusal.shown)
    return Verdict("unclear", error.message)


def _nothing(_: Situation) -> Sequence[Json]:
    return ()


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is checked.

    Attributes:
        name: its name in JSON; it is never changed.
        title: what is checked, for people.
        judge: judges the answers; those of the first check, if this one has no requests.
        requests: returns the fields of its chat requests, beside those that all have.
        instead: the change that may help if the server ignores what is asked for, or refuses it in unknown words.
        together: whether the requests are sent at the same time.
        refused: judges an error against which no change helps.
    """

    name: str
    title: str
    judge: Judge
    requests: Callable[[Situation], Sequence[Json]] = _nothing
    instead: Step | None = None
    together: bool = False
    refused: Callable[[ApiError], Verdict] = _unhelped


def _fixed(*requests: Json) -> Callable[[Situation], Sequence[Json]]:
    return lambda _: requests


def _messages(*messages: Json) -> Json:
    return {"messages": list(messages)}


def _works(note: str = "") -> Verdict:
    return Verdict("works", note)


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[: _SHOWN_CHARACTERS - 3]}..."


# Answers and their ends


def _answered(evidence: Evidence) -> Verdict:
    silent = [each for each in evidence.answers if not (each.said or each.calls)]
    return Verdict("unclear", "an answer without text came") if silent else _works()


def _first(evidence: Evidence) -> Verdict:
    answer = evidence.answer
    if not answer.said:
        return Verdict("unclear", "an answer without text came")
    return _works(f"'{_shown(answer.said)}'")


def _ended(evidence: Evidence) -> Verdict:
    answer = evidence.answer
    done = {True: ", then [DONE]", False: ", without [DONE]", None: ""}[answer.done]
    if not answer.reason:
        return Verdict("adapted", f"no finish_reason{done}: read as a whole answer")
    if meaning_of(answer.reason) is None:
        return Verdict("adapted", f"the unknown finish_reason '{_shown(answer.reason)}': read as 'stop'")
    return _works(f"finish_reason '{_shown(answer.reason)}'{done}")


def _counted(evidence: Evidence) -> Verdict:
    answer = evidence.answer
    if answer.usage is None:
        return Verdict("lost", "no tokens are reported: 'usage' is null")
    return _works(f"{answer.usage.input_tokens} in, {answer.usage.output_tokens} out")


def _reasoned(evidence: Evidence) -> Verdict:
    answer = evidence.answer
    if answer.reasoning_field:
        return _works(f"it comes in '{answer.reasoning_field}'")
    if "<think>" in answer.text or "</think>" in answer.text:
        return Verdict("adapted", "it comes in the text, between tags")
    return Verdict("unclear", "the model did not reason")


def _limited(evidence: Evidence) -> Verdict:
    answer = evidence.answer
    written = answer.usage.output_tokens if answer.usage else 0
    if answer.cut or written > 2 * FEW or len(answer.said) > _FEW_WORDS:
        return Verdict("lost", "it is ignored")
    if meaning_of(answer.reason) == "length":
        return _works()
    return Verdict("unclear", "the model stopped by itself")


# Tools


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_paint(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"color"} and value["color"] in ("red", "blue")


def _called(evidence: Evidence, *, name: str = "", forced: bool = True) -> Verdict:
    calls = evidence.answer.calls
    if not calls:
        return Verdict("lost" if forced else "unclear", "no tool was called")
    if name and any(call.name != name for call in calls):
        return Verdict("lost", f"'{_shown(calls[0].name)}' was called instead")
    if any(not isinstance(_arguments(call.arguments), dict) for call in calls):
        return Verdict("unclear", "the arguments of the call are no JSON object")
    return _works(f"{', '.join(_shown(call.name) for call in calls[:3])}")


def _one_at_a_time(evidence: Evidence) -> Verdict:
    if len(evidence.answer.calls) > 1:
        return Verdict("lost", f"{len(evidence.answer.calls)} calls came at once, and one was asked for")
    if "parallel_tool_calls" in evidence.changed:
        return Verdict("lost", "the model may call several tools at once")
    return _called(evidence, forced=False)


def _at_once(evidence: Evidence) -> Verdict:
    count = len(evidence.answer.calls)
    if count > 1:
        return _works(f"{count} calls in one answer")
    if count and "parallel_tool_calls" in evidence.changed:
        return Verdict("lost", "one call at a time")
    return Verdict("unclear", "one call came" if count else "no tool was called")


def _exact_call(evidence: Evidence) -> Verdict:
    calls = evidence.answer.calls
    if not calls:
        return Verdict("unclear", "no tool was called")
    if not all(_is_paint(_arguments(call.arguments)) for call in calls):
        return Verdict("lost", "the arguments are not those of the schema")
    return _works("the arguments are those of the schema")


# Formats of the answer


def _json_answer(evidence: Evidence, *, exact: bool) -> Verdict:
    answer = evidence.answer
    in_words = not {SCHEMA, FORMAT}.isdisjoint(evidence.changed)
    texts = json_texts(answer.text) if in_words else [answer.text]
    value = next((found for each in texts if (found := _arguments(each)) is not None), None)
    if _is_paint(value) if exact else isinstance(value, dict):
        return _works()
    if meaning_of(answer.reason) == "length" and not answer.text:
        return Verdict("unclear", "the model reasoned until its limit")
    return Verdict("lost", f"another text came: '{_shown(answer.text)}'")


# What is seen, kept, counted


def _seen(evidence: Evidence) -> Verdict:
    if "no_images" in evidence.changed:
        return Verdict("lost", "the model gets a note in place of an image")
    if "red" in evidence.answer.said.lower():
        return _works("the model saw its color")
    return Verdict("unclear", f"it is taken, and the model says '{_shown(evidence.answer.said)}'")


def _kept(evidence: Evidence, *, names: frozenset[str], without: str) -> Verdict:
    if gone := sorted(names & evidence.changed):
        return Verdict("lost", f"{without}: {', '.join(gone)}")
    return _answered(evidence)


def _reasoning_returned(evidence: Evidence) -> Verdict:
    if any(each.startswith("messages.") for each in evidence.changed) or "no_reasoning" in evidence.changed:
        return Verdict("lost", "the model does not get its earlier reasoning")
    return _answered(evidence)


def _with_logprobs(evidence: Evidence) -> Verdict:
    return _works() if evidence.answer.has_logprobs else Verdict("lost", "none come")


def _from_cache(evidence: Evidence) -> Verdict:
    usage = evidence.answers[-1].usage
    if usage and usage.cached_tokens:
        return _works(f"{usage.cached_tokens} of {usage.input_tokens} tokens")
    return Verdict("unclear", "the same prompt again has no cached tokens")


def _all_at_once(evidence: Evidence) -> Verdict:
    return _works(f"{len(evidence.answers)} answers at the same time")


def _too_long_answered(evidence: Evidence) -> Verdict:
    """Judge the answer to a request that should be too long."""
    usage, sent = evidence.answer.usage, context_tokens(evidence.situation)
    if usage and usage.input_tokens < sent // 2:
        return Verdict("lost", f"of {sent} tokens it reads {usage.input_tokens}, and says nothing")
    length = evidence.situation.context_length
    if usage and length and usage.input_tokens > length:
        return Verdict("lost", f"it reads {usage.input_tokens} tokens, beyond the {length} of its context")
    return Verdict("unclear", f"a request of about {sent} tokens is answered")


def _too_long_refused(error: ApiError) -> Verdict:
    if isinstance(error, TooLongError):
        known = f", {error.length} tokens" if error.length else ""
        return _works(f"context_length_exceeded{known}")
    return Verdict(
        "lost" if isinstance(error, RefusedError) else "unclear", f"other words than those known: {error.message}"
    )


# The requests that depend on the model


def _returned_reasoning(situation: Situation) -> Sequence[Json]:
    field = situation.first.reasoning_field if situation.first else ""
    name = field if field in TEXT_FIELDS else "reasoning_content"
    earlier = {**says("assistant", "Hello Ada!"), name: "A greeting is asked for."}
    return [_messages(HELLO, earlier, says("user", "And to Bob."))]


def context_tokens(situation: Situation) -> int:
    """Return how many tokens, about, the longest request has."""
    length = situation.context_length or _UNKNOWN_CONTEXT
    return min(length, _MAX_CONTEXT) + 512


def _too_much(situation: Situation) -> Sequence[Json]:
    # Most tokenizers have one token for such a word, and no one has fewer.
    return [{**_messages(says("user", "wall " * context_tokens(situation))), LIMIT: 1}]


def _seeing(_: Situation) -> Sequence[Json]:
    parts = [
        {"type": "text", "text": "Which color has this picture? Answer in one word."},
        {"type": "image_url", "image_url": {"url": image()}},
    ]
    return [_messages(says("user", parts))]


_PARTS: Final = [{"type": "text", "text": "Say hello to Ada."}, {"type": "text", "text": "Be brief."}]
_REQUIRED: Final[Json] = {**_messages(ASKED_TO_PAINT), "tools": [BRUSH, RULER], "tool_choice": "required", LIMIT: LONG}
_NAMED: Final = {"type": "function", "function": {"name": "paint"}}
_SPEED: Final[Json] = {**_messages(COUNT), LIMIT: SPEED}
_BOTH: Final = says("user", "Paint the wall red, and measure it in meters. Call both tools now, in one answer.")
_IN_CALL: Final = Step(CALL)

CHECKS: Final[tuple[Check, ...]] = (
    Check("answer", "a streamed answer", _first, _fixed(_messages(HELLO))),
    Check("stream_end", "the end of a stream", _ended),
    Check("usage", "tokens in a stream", _counted),
    Check("reasoning", "reasoning", _reasoned),
    Check("whole_answer", "an answer in one piece", _answered, _fixed({**_messages(HELLO), "stream": False})),
    Check(
        "limit",
        "a limit on tokens",
        _limited,
        _fixed({**_messages(COUNT), LIMIT: FEW}),
        Step("rename", (LIMIT, "max_tokens")),
    ),
    Check(
        "developer",
        "developer messages",
        _answered,
        _fixed(_messages(says("developer", "Be brief."), HELLO)),
        Step("no_developer"),
    ),
    Check(
        "system_later",
        "system messages behind others",
        _answered,
        _fixed(_messages(HELLO, says("assistant", "Hello Ada!"), says("system", "Be brief."), HELLO)),
    ),
    Check(
        "order",
        "turns in any order",
        _answered,
        _fixed(
            _messages(HELLO, HELLO, says("assistant", "Hello Ada!"), HELLO),
            _messages(says("assistant", "I can greet."), HELLO),
        ),
    ),
    Check("parts", "text in parts", _answered, _fixed(_messages(says("user", _PARTS)))),
    Check(
        "tools",
        "calls of tools",
        partial(_called, forced=False),
        _fixed({**_messages(ASKED_TO_PAINT), "tools": [BRUSH], LIMIT: LONG}),
    ),
    Check("required_call", "tool_choice required", _called, _fixed(_REQUIRED), _IN_CALL),
    Check(
        "named_call",
        "tool_choice of one tool",
        partial(_called, name="paint"),
        _fixed({**_REQUIRED, "tool_choice": _NAMED}),
        _IN_CALL,
    ),
    Check("one_call", "one call at a time", _one_at_a_time, _fixed({**_REQUIRED, "parallel_tool_calls": False})),
    Check(
        "parallel_calls",
        "several calls at once",
        _at_once,
        _fixed({**_REQUIRED, **_messages(_BOTH), "parallel_tool_calls": True}),
    ),
    Check("strict_tools", "strict tools", _exact_call, _fixed({**_REQUIRED, "tools": [STRICT_BRUSH]})),
    Check("tool_schemas", "schemas with $ref and bounds", _answered, _fixed({**_REQUIRED, "tools": [ODD_BRUSH]})),
    Check("tool_results", "outputs of tools", _answered, _fixed({**_messages(*RESULTS), "tools": [BRUSH]})),
    Check(
        "after_tool",
        "a question behind an output",
        _answered,
        _fixed({**_messages(*RESULTS, says("user", "Thanks. Which color is it?")), "tools": [BRUSH]}),
    ),
    Check(
        "json_schema",
        "json_schema",
        partial(_json_answer, exact=True),
        _fixed({**_messages(ASKED_FOR_JSON), "response_format": JSON_SCHEMA, LIMIT: LONG}),
        Step(SCHEMA),
    ),
    Check(
        "json_object",
        "json_object",
        partial(_json_answer, exact=False),
        _fixed({**_messages(ASKED_FOR_JSON), "response_format": JSON_OBJECT, LIMIT: LONG}),
        Step(FORMAT),
    ),
    Check("images", "images", _seen, _seeing),
    Check(
        "effort",
        "efforts of reasoning",
        partial(_kept, names=frozenset({"reasoning_effort"}), without="the model is not told"),
        _fixed(*({**_messages(HELLO), "reasoning_effort": each} for each in ("minimal", "xhigh"))),
    ),
    Check("reasoning_back", "reasoning of earlier turns", _reasoning_returned, _returned_reasoning),
    Check("hints", "hints", _answered, _fixed({**_messages(HELLO), **HINTS})),
    Check(
        "sampling",
        "sampling parameters",
        partial(_kept, names=frozenset(SAMPLING), without="without effect"),
        _fixed({**_messages(HELLO), **SAMPLING}),
    ),
    Check(
        "logprobs",
        "log probabilities",
        _with_logprobs,
        _fixed({**_messages(HELLO), "logprobs": True, "top_logprobs": 2}),
    ),
    Check("cached_tokens", "cached tokens", _from_cache, _fixed(_messages(CACHED), _messages(CACHED))),
    Check("speed", "speed", _answered, _fixed(_SPEED)),
    Check("concurrency", "answers at the same time", _all_at_once, _fixed(*[_SPEED] * TOGETHER), together=True),
    Check("too_long", "a request that is too long", _too_long_answered, _too_much, refused=_too_long_refused),
)
"""All checks, in order: the one that may keep a server busy is the last."""
