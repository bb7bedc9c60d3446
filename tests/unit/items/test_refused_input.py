"""Input that was refused before a model answered, which no later model receives."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.items.refused_input import without_refused
from tests.support.input_items import NO, call_output, called, message

Json = dict[str, Any]


def test_refused_message_is_not_sent_again() -> None:
    before, after = [message("user", "a"), message("assistant", "b")], [message("user", "c")]
    assert without_refused([*before, message("user", "bad"), message("user", "worse"), NO, *after]) == [*before, *after]
    assert without_refused([NO]) == []


def test_refused_output_is_not_sent_again_nor_its_call() -> None:
    before = [message("user", "a"), called("1"), call_output("1")]
    assert without_refused([*before, called("2"), call_output("2", "bad"), NO]) == before


def test_later_output_replaces_refused_one() -> None:
    call, better = called("2"), call_output("2", "better")
    assert without_refused([message("user", "a"), call, call_output("2", "bad"), NO, better]) == [
        message("user", "a"),
        call,
        better,
    ]


@pytest.mark.parametrize(
    "answer",
    [
        NO | {"status": "completed"},
        NO | {"content": [{"type": "output_text", "text": "b"}, *NO["content"]]},
        message("assistant", "b", status="incomplete"),
    ],
)
def test_other_incomplete_answers_are_kept(answer: Json) -> None:
    items = [message("user", "a"), answer]
    assert without_refused(items) == items


def test_items_before_answer_are_kept() -> None:
    system, thought = message("system", "s"), {"type": "reasoning", "summary": []}
    assert without_refused([system, message("user", "a"), NO]) == [system]
    assert without_refused([message("user", "a"), thought, NO]) == [message("user", "a"), thought]
