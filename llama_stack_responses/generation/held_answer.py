"""Holds the text of an answer back until it is known to have what the request demands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from ..chat.adaptation.enforced import Expectation
from ..chat.adaptation.json_answers import NO_JSON, json_texts
from ..chat.malformed_calls import WrittenCall
from ..core.errors import UnusableAnswerError
from ..core.json_blocks import dumps
from ..core.types import Json
from ..process_pool.pool import Task, WorkerPool
from ..stream.deltas import Annotation, Delta, Finish, Refusal, Text, ToolCall
from ..stream.usage import Usage

CheckJson = Callable[[str, Json], Awaitable[str]]
"""Returns why a text is not valid against a schema, in one sentence; empty if it is."""

_TASK: Final = "llama_stack_responses.chat.adaptation.schema_task"
_SECONDS: Final = 10.0
_ANSWER_BYTES: Final = 8_192


def check_in_worker(pool: WorkerPool) -> CheckJson:
    """Return the check that runs in a worker process."""

    async def check(text: str, schema: Json) -> str:
        content = dumps({"text": text, "schema": schema})
        answer = await pool.run(Task(_TASK, content, _SECONDS, _ANSWER_BYTES))
        if "problem" in answer:
            return "it could not be checked against the schema in time."
        return answer["text"]

    return check


class UnfitAnswer(Exception):  # noqa: N818 - a reason to ask again
    """An answer lacks what the request demands; nothing of its text was passed on.

    Attributes:
        text: its text.
        problem: what is wrong with it, in one sentence.
        spent: the tokens of this answer and those before.
    """

    def __init__(self, text: str, problem: str, spent: Usage) -> None:
        super().__init__(problem)
        self.text = text
        self.problem = problem
        self.spent = spent


class HeldAnswer:
    """A delta filter that holds text until the answer is known to be right.

    Reasoning, calls and refusals pass. Once the model has called a tool, or has refused, text passes too.

    Args:
        expectation: what the answer must have.
        check: checks JSON.
        spent: the tokens of answers that were dropped.
    """

    def __init__(self, expectation: Expectation, check: CheckJson, spent: Usage) -> None:
        self._expectation = expectation
        self._check = check
        self._held: list[Delta] = []
        self._passes = False
        self._spent = spent

    async def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """Yield the deltas that may pass now.

        Raises:
            UnfitAnswer: the answer has ended, and lacks what the request demands.
        """
        match delta:
            case Text() | Annotation() if not self._passes:
                self._held.append(delta)
                return
            case ToolCall() | Refusal():  # A model that refuses would refuse again.
                self._passes = True
                for each in self._released():
                    yield each
            case Finish():
                for each in await self._ended(delta):
                    yield each
                delta = Finish(delta.reason, delta.usage + self._spent)
        yield delta

    def _released(self) -> list[Delta]:
        held, self._held = self._held, []
        return held

    async def _ended(self, finish: Finish) -> list[Delta]:
        """Return the held deltas, if they are right."""
        if self._passes or finish.reason not in ("stop", "tool_calls"):
            return self._released()
        text = "".join(each.text for each in self._held if isinstance(each, Text))
        problem, shown = "it calls no tool.", text
        if not self._expectation.call:
            shown, problem = await self._json(text)
        if problem:
            raise UnfitAnswer(text, problem, self._spent + finish.usage)
        return self._released() if shown == text else [Text(shown)]

    async def _json(self, text: str) -> tuple[str, str]:
        """Return the JSON of an answer, and why it is not valid against the schema; the whole text if it has none."""
        no_json = ""
        for each in json_texts(text):
            problem = await self._check(each, self._expectation.schema or {})
            if not problem.startswith(NO_JSON):
                return each, problem
            no_json = no_json or problem
        return text, no_json


async def are_valid(calls: Sequence[WrittenCall], tools: Sequence[Json], check: CheckJson) -> bool:
    """Return whether all calls are of functions that a chat request declares, with valid arguments.

    Args:
        calls: the calls.
        tools: the tools of the chat request.
        check: checks JSON.
    """
    declared = {function.get("name"): function for tool in tools if isinstance(function := tool.get("function"), dict)}
    for call in calls:
        if call.name not in declared or await check(call.arguments, declared[call.name].get("parameters") or {}):
            return False
    return True


def no_repair(expectation: Expectation | None, unfit: UnfitAnswer) -> UnusableAnswerError:
    """Return the error of a response whose model did not give what the request demands, however often it was asked."""
    if expectation and expectation.call:
        return UnusableAnswerError(
            "The model did not call a tool, which 'tool_choice' requires, although it was asked in words, twice, "
            "because its model server does not enforce that: use another model, or 'tool_choice': 'auto'.",
        )
    return UnusableAnswerError(
        f"The model's answer is not valid against the schema of 'text.format' ({unfit.problem.rstrip('.')}), although "
        "it was asked in words, three times, because its model server does not enforce schemas: use another model, or "
        "a simpler schema.",
    )
