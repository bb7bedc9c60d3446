"""The part of a compacted conversation that a model receives."""

from typing import Any

import pytest

from llama_stack_responses.items.compaction import (
    Summary,
    as_message,
    before_question,
    continued,
    has_new_items,
    open_message,
    shown_message,
)

Json = dict[str, Any]


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


SYSTEM, DEVELOPER = message("system", "Be kind."), message("developer", "Be brief.")
ASKED, ANSWERED, AGAIN = message("user", "a?"), message("assistant", "b."), message("user", "c?")
PICTURE: Json = {"type": "message", "role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}
SEEN: Json = {**PICTURE, "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
CALL: Json = {"type": "function_call", "call_id": "1"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "1"}
PLAIN: Json = {"type": "compaction", "encrypted_content": "plain"}
OPEN: Json = {"type": "compaction", "encrypted_content": "open"}
GONE: Json = {"type": "compaction", "encrypted_content": "gone"}


def read(item: Json) -> Summary | None:
    return {"plain": Summary("S"), "open": Summary("S", ASKED["content"])}.get(item["encrypted_content"])


def texts(items: list[Json]) -> list[str]:
    parts = [item.get("content", [{"text": item["type"]}]) for item in items]
    return [part["text"] for content in parts for part in content]


S = "The conversation so far has been summarised:\n\n<summary>\nS\n</summary>"
S_OPEN = f"{S}\n\nThe user's latest message was:"


@pytest.mark.parametrize(
    ("items", "seen"),
    [
        ([], []),
        ([ASKED, ANSWERED], ["a?", "b."]),
        ([ASKED, ANSWERED, PLAIN], [S]),
        ([ASKED, ANSWERED, PLAIN, AGAIN], [S, "c?"]),
        ([SYSTEM, DEVELOPER, ASKED, SYSTEM, PLAIN, AGAIN], ["Be kind.", "Be brief.", S, "c?"]),
        ([PLAIN, ASKED, ANSWERED, PLAIN, AGAIN], [S, "c?"]),
        # The open question is repeated, unless it is still there.
        ([ASKED, OPEN, ANSWERED], [S_OPEN, "a?", "b."]),
        ([ASKED, OPEN, ASKED], [S, "a?"]),
        # An unreadable summary replaces nothing.
        ([ASKED, GONE, AGAIN], ["a?", "compaction", "c?"]),
        ([ASKED, PLAIN, ANSWERED, GONE, AGAIN], [S, "b.", "compaction", "c?"]),
    ],
)
def test_summary_replaces_earlier_items(items: list[Json], seen: list[str]) -> None:
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
        # A summary as shown to the model counts as summarised too.
        (continued([ASKED, OPEN], read), False),
        (continued([ASKED, OPEN, CALL], read), True),
    ],
)
def test_has_news_is_whether_to_summarise(items: list[Json], news: bool) -> None:
    assert has_new_items(items, read) is news


def test_question_at_end_is_split_off() -> None:
    assert before_question([ASKED, ANSWERED, ASKED, AGAIN]) == ([ASKED, ANSWERED], [ASKED, AGAIN])
    assert before_question([ASKED]) == ([], [ASKED])
    assert before_question([ASKED, CALL, OUTPUT]) == ([ASKED, CALL, OUTPUT], [])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], None),
        ([ASKED, ANSWERED], None),
        ([ASKED], ASKED),
        ([ASKED, ANSWERED, AGAIN, CALL, OUTPUT], AGAIN),
        ([OPEN, CALL, OUTPUT], ASKED),
        ([PLAIN, CALL, OUTPUT], None),
        ([PICTURE, CALL, OUTPUT], PICTURE),
    ],
)
def test_open_message_is_last_unanswered_user_message(items: list[Json], message: Json | None) -> None:
    assert open_message(items, items, read) == (message and message["content"])


def test_open_message_is_kept_as_sent() -> None:
    assert open_message([SEEN, CALL, OUTPUT], [PICTURE], read) == PICTURE["content"]
    assert open_message([SEEN, CALL, ANSWERED], [PICTURE], read) is None


def test_open_message_is_shown_as_read() -> None:
    assert shown_message([SEEN, CALL, OUTPUT]) == SEEN["content"]
    output = as_message(Summary("S", SEEN["content"]))
    assert [part["type"] for part in output["content"]] == ["input_text", "input_image"]
    assert shown_message([output, CALL, OUTPUT]) == SEEN["content"]
    # A message shown together with its resolved content is not repeated.
    assert continued([PICTURE, OPEN, output, CALL], read) == [output, CALL]


def test_summary_decodes_to_itself() -> None:
    large = [{"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 1_000_000}"}]
    for summary in (Summary("Ünï"), Summary("a", PICTURE["content"]), Summary("b", large)):
        assert Summary.decode(summary.encode()) == summary
