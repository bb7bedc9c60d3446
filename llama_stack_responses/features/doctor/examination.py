"""The examination of a model: all checks, with the changes of requests that its server asks for.

A check whose request is refused is repeated with the changes by which the server would adapt a user's request. These
are found by the same functions, in the words of the refusal, and kept for the checks that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...chat.adaptation.adaptation import Step
from ...chat.adaptation.refusal import RefusedError
from ...chat.adaptation.registry import adapted, asked_by, in_order, is_of_model
from ...concurrency.offloading import in_thread
from ...concurrency.tasks import gather_or_cancel
from ...core.errors import ApiError, TooLongError, UnusableAnswerError
from ...core.types import Json
from .answer import Answer, Bounds, Server, ask
from .checks import CHECKS, Check, Evidence, Situation, Verdict
from .report import NOTE_CHARACTERS, Finding, Measured, Report, profile_entry
from .requests import HELLO, LIMIT, SHORT

_MAX_CHANGES: Final = 16
"""Maximum number of times that a request is changed after a refusal: a server may name one parameter at a time."""
_MAX_WAITS: Final = 3
"""Maximum number of times that a request is sent again because of a rate limit."""
_WAIT_SECONDS: Final = 2.0
_MAX_WAIT_SECONDS: Final = 30.0
_MAX_SILENT: Final = 3
"""Maximum number of checks in a row without an answer or a refusal: then the server is gone."""

type Progress = Callable[[int, Check], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined.

    Attributes:
        name: the URL of the model server, or the id of its provider.
        model: the model, by its name for the server.
        match: the pattern of the profile for it.
        context_length: the tokens of its context, if they are known.
    """

    name: str
    model: str
    match: str
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of an examination.

    Attributes:
        seconds: returns seconds that only grow.
        now: returns seconds since the epoch.
        sleep: waits for some seconds.
    """

    seconds: Callable[[], float]
    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep


@dataclass(slots=True)
class _Attempt:
    """A check that is being made: the changes that are for it alone, and those of its requests."""

    extra: tuple[Step, ...] = ()
    new: list[Step] = field(default_factory=list)
    applied: dict[Step, None] = field(default_factory=dict)
    words: str = ""


def _unwatched(_: int, __: Check) -> None:
    """Show no progress."""


class Examination:
    """Examines one model.

    Args:
        server: its server.
        subject: what is examined.
        bounds: what one answer may take.
        clock: the time.
        clean: returns a text of the server without what must not be shown.
        progress: is called with the number of checks that were made, and the next one.
        checks: what is checked.
    """

    def __init__(
        self,
        server: Server,
        subject: Subject,
        bounds: Bounds,
        clock: Clock,
        *,
        clean: Callable[[str], str] = str,
        progress: Progress = _unwatched,
        checks: Sequence[Check] = CHECKS,
    ) -> None:
        self._server, self._subject, self._bounds, self._clock = server, subject, bounds, clock
        self._clean, self._progress, self._checks = clean, progress, checks
        self._situation = Situation(context_length=subject.context_length)
        self._steps: tuple[Step, ...] = ()
        self._measured = Measured()
        self._silent = 0

    async def run(self) -> Report:
        """Make all checks.

        Raises:
            ApiError: the server cannot be asked, or does not answer any more.
        """
        began = self._clock.seconds()
        findings = []
        for number, check in enumerate(self._checks):
            self._progress(number, check)
            findings.append(await self._made(check))
        measured, subject = self._measured, self._subject
        return Report(
            server=subject.name,
            model=subject.model,
            findings=tuple(findings),
            profile=profile_entry(subject.match, self._steps, measured.fields),
            requests=measured.requests,
            seconds=self._clock.seconds() - began,
            first_token_seconds=measured.first_token_seconds,
            tokens_per_second=measured.tokens_per_second,
            concurrent_tokens_per_second=measured.concurrent_tokens_per_second,
            context_length=measured.context_length or subject.context_length,
            at=self._clock.now(),
        )

    async def _made(self, check: Check) -> Finding:
        attempt = _Attempt()
        verdict = await self._verdict(check, attempt)
        changes = self._changes(attempt)
        outcome = "adapted" if verdict.outcome == "works" and changes else verdict.outcome
        note = " ".join(self._clean(verdict.note or attempt.words).split())
        cut = note if len(note) <= NOTE_CHARACTERS else f"{note[: NOTE_CHARACTERS - 3]}..."
        return Finding(check.name, check.title, outcome, cut, tuple(map(str, changes)))

    async def _verdict(self, check: Check, attempt: _Attempt) -> Verdict:
        try:
            verdict = await self._judged(check, attempt)
        except ApiError as error:
            self._note_trouble(error)
            verdict = check.refused(error)
        if verdict.outcome == "lost" and check.instead and check.instead.kind not in _names(attempt.applied):
            return await self._otherwise(check, check.instead, attempt, verdict)
        return verdict

    async def _judged(self, check: Check, attempt: _Attempt) -> Verdict:
        requests, began = check.requests(self._situation), self._clock.seconds()
        answers: list[Answer] = []
        if check.together:
            await gather_or_cancel([self._answer(each, attempt, answers) for each in requests])
        for each in requests if not check.together else ():
            await self._answer(each, attempt, answers)
        self._silent = 0
        if self._situation.first is None:
            self._situation = replace(self._situation, first=answers[0])
        first = self._situation.first
        self._measure(check, answers, self._clock.seconds() - began)
        return check.judge(Evidence(answers or ([first] if first else []), _names(attempt.applied), self._situation))

    async def _otherwise(self, check: Check, instead: Step, attempt: _Attempt, before: Verdict) -> Verdict:
        """Make a check again with a change that no refusal asks for, and keep it if it helps."""
        attempt.extra += (instead,)
        try:
            verdict = await self._judged(check, attempt)
        except ApiError as error:
            self._note_trouble(error)
            return before
        if verdict.outcome != "works":
            attempt.applied.pop(instead, None)
            return before
        attempt.new.append(instead)
        self._steps = in_order([*self._steps, instead])
        return Verdict("works", verdict.note or before.note)

    async def _answer(self, fields: Json, attempt: _Attempt, answers: list[Answer]) -> None:
        """Send a request, changed as the server needs it, and append the answer to the others.

        Raises:
            ApiError: no change helps.
        """
        chat = {"model": self._subject.model, "stream": True, LIMIT: SHORT, "messages": [HELLO], **fields}
        if chat["stream"]:
            chat["stream_options"] = {"include_usage": True}
        for _ in range(_MAX_CHANGES):
            sent, applied = adapted(chat, in_order([*self._steps, *attempt.extra]))
            try:
                answers.append(await self._sent(sent))
            except RefusedError as error:
                if not await self._learned(error, sent, attempt):
                    raise
                continue
            attempt.applied |= dict.fromkeys(applied)
            return
        raise ApiError(502, f"The request is refused even after {_MAX_CHANGES} changes.")

    async def _learned(self, error: RefusedError, sent: Json, attempt: _Attempt) -> bool:
        """Take over the changes that a refusal asks for; return False if there are none."""
        new = await in_thread(asked_by, error.refusal, sent, (*self._steps, *attempt.extra))
        attempt.words = attempt.words or error.refusal.shown
        attempt.new += new
        lasting = [step for step in new if is_of_model(step, sent)]
        self._steps = in_order([*self._steps, *lasting])
        attempt.extra += tuple(step for step in new if step not in lasting)
        return bool(new)

    async def _sent(self, chat: Json) -> Answer:
        for _ in range(_MAX_WAITS):
            try:
                self._measured.requests += 1
                return await ask(self._server, chat, self._bounds, self._clock.seconds)
            except ApiError as error:
                if error.status != 429 or error.code == "insufficient_quota":
                    raise
                limited = error
            await self._clock.sleep(min(limited.retry_after or _WAIT_SECONDS, _MAX_WAIT_SECONDS))
        raise limited

    def _note_trouble(self, error: ApiError) -> None:
        """Note that a check has no answer.

        Raises:
            ApiError: nothing can be found out about this server.
        """
        if isinstance(error, TooLongError) and error.length and not self._subject.context_length:
            self._measured.context_length = self._measured.fields["context_length"] = error.length
        if self._situation.first is None:
            raise error
        answers = isinstance(error, RefusedError | TooLongError | UnusableAnswerError) or error.status == 429
        self._silent = 0 if answers else self._silent + 1
        if self._silent >= _MAX_SILENT:
            raise error

    def _changes(self, attempt: _Attempt) -> list[Step]:
        """Return the changes of a check's requests that a request without anything special does not get."""
        plain: Json = {"model": "", "stream": True, "stream_options": {}, LIMIT: SHORT, "messages": [HELLO]}
        everywhere = adapted(plain, self._steps)[1]
        return [step for step in attempt.applied if step in attempt.new or step not in everywhere]

    def _measure(self, check: Check, answers: Sequence[Answer], seconds: float) -> None:
        measured, first = self._measured, self._situation.first
        tokens = sum(each.usage.output_tokens for each in answers if each.usage)
        if check.name == "answer" and first and "think>" in first.text:
            measured.fields["inline_thinking"] = {"starts_open": "<think>" not in first.text}
        if check.name == "speed":
            [answer] = answers
            measured.first_token_seconds = begun = answer.first_seconds
            if begun is not None and tokens > 1 and answer.seconds > begun:
                measured.tokens_per_second = (tokens - 1) / (answer.seconds - begun)
        if check.name == "concurrency" and tokens and seconds > 0:
            measured.concurrent_tokens_per_second = tokens / seconds


def _names(steps: Sequence[Step] | dict[Step, None]) -> frozenset[str]:
    """Return the kinds of changes, and the names of what they drop."""
    return frozenset(each.argument if each.kind == "drop" else each.kind for each in steps)
