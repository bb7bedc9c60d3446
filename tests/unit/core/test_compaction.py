"""What a model sees of a conversation that was compacted."""

from typing import Any

import pytest

from llama_stack_responses.core.compaction import Summary, before_question, continued, has_news, open_message

Json = dict[str, Any]


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


SYSTEM, DEVELOPER = message("system", "Be kind."), message("developer", "Be brief.")
ASKED, ANSWERED, AGAIN = message("user", "a?"), message("assistant", "b."), message("user", "c?")
CALL: Json = {"type": "function_call", "call_id": "1"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "1"}
PLAIN: Json = {"type": "compaction", "encrypted_content": "plain"}
OPEN: Json = {"type": "compaction", "encrypted_content": "open"}
GONE: Json = {"type": "compaction", "encrypted_content": "gone"}


def read(item: Json) -> Summary | None:
    return {"plain": Summary("S"), "open": Summary("S", "a?")}.get(item["encrypted_content"])


def texts(items: list[Json]) -> list[str]:
    return [item["content"][0]["text"] if "content" in item else item["type"] for item in items]


S = "The conversation so far has been summarised:\n\n<summary>\nS\n</summary>"
S_OPEN = f"{S}\n\nThe user's latest message was:\n\n<message>\na?\n</message>"


@pytest.mark.parametrize(
    ("items", "seen"),
    [
        ([], []),
        ([ASKED, ANSWERED], ["a?", "b."]),
        ([ASKED, ANSWERED, PLAIN], [S]),
        ([ASKED, ANSWERED, PLAIN, AGAIN], [S, "c?"]),
        ([SYSTEM, DEVELOPER, ASKED, SYSTEM, PLAIN, AGAIN], ["Be kind.", "Be brief.", S, "c?"]),
        ([PLAIN, ASKED, ANSWERED, PLAIN, AGAIN], [S, "c?"]),
        # The question that was open is told, unless it is there.
        ([ASKED, OPEN, ANSWERED], [S_OPEN, "b."]),
        ([ASKED, OPEN, ASKED], [S, "a?"]),
        # What cannot be read stands for nothing.
        ([ASKED, GONE, AGAIN], ["a?", "compaction", "c?"]),
        ([ASKED, PLAIN, ANSWERED, GONE, AGAIN], [S, "b.", "compaction", "c?"]),
    ],
)
def test_a_summary_takes_the_place_of_what_came_before(items: list[Json], seen: list[str]) -> None:
    assert texts(continued(items, read)) == seen


@pytest.mark.parametrize(
    ("items", "news"),
    [
        ([], False),
        ([SYSTEM], False),
        ([ASKED], True),
        ([ASKED, PLAIN], False),
        ([PLAIN, SYSTEM], False),
        ([PLAIN, ANSWERED, SYSTEM], True),
        ([ASKED, GONE], True),
    ],
)
def test_whether_there_is_something_to_summarise(items: list[Json], news: bool) -> None:
    assert has_news(items, read) is news


def test_the_question_at_the_end() -> None:
    assert before_question([ASKED, ANSWERED, ASKED, AGAIN]) == ([ASKED, ANSWERED], [ASKED, AGAIN])
    assert before_question([ASKED]) == ([], [ASKED])
    assert before_question([ASKED, CALL, OUTPUT]) == ([ASKED, CALL, OUTPUT], [])


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], None),
        ([ASKED, ANSWERED], None),
        ([ASKED], "a?"),
        ([ASKED, ANSWERED, AGAIN, CALL, OUTPUT], "c?"),
        ([OPEN, CALL, OUTPUT], "a?"),
        ([PLAIN, CALL, OUTPUT], None),
        ([{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "u"}]}], None),
    ],
)
def test_the_message_that_is_still_being_answered(items: list[Json], text: str | None) -> None:
    assert open_message(items, read) == text


def test_a_summary_comes_back_as_it_was() -> None:
    for summary in (Summary("Ünï"), Summary("a", "b")):
        assert Summary.decode(summary.encode()) == summary
