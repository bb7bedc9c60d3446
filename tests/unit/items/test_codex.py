"""Items that Codex sends beside those of the API reference are accepted, and the model reads what they say."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.inputs.history import for_model
from llama_stack_responses.requests.input_items import parse_input

type Json = dict[str, Any]

SEALED = "gAAAAAB" + "x9_-" * 40
"""Content that OpenAI has sealed, as it looks."""
TASK: Json = {
    "type": "agent_message",
    "id": "amsg_1",
    "author": "/root",
    "recipient": "/root/worker",
    "content": [
        {"type": "input_text", "text": "Message Type: NEW_TASK\nPayload:\n"},
        {"type": "encrypted_content", "encrypted_content": "Count the otters."},
    ],
    "internal_chat_message_metadata_passthrough": {"turn_id": "t1"},
}
HEAD = "[Message from agent '/root' to agent '/root/worker']"
SNAPSHOT: Json = {
    "type": "ghost_snapshot",
    "ghost_commit": {"id": "c0ffee", "parent": None, "preexisting_untracked_files": []},
}


def said(*items: Json) -> list[Json]:
    """Return the chat messages that a model gets for the items of a request."""
    return chat_messages(for_model(parse_input(list(items))), Profile())


def test_agent_message_reaches_model_in_order_with_author_and_recipient() -> None:
    before = {"role": "user", "content": "Go on."}
    after = {"role": "assistant", "content": "I count."}
    first, message, last = said(before, TASK, after)
    assert (first["content"], last["content"]) == ("Go on.", "I count.")
    assert message == {"role": "user", "content": f"{HEAD}\nMessage Type: NEW_TASK\nPayload:\nCount the otters."}


def test_unreadable_parts_of_agent_message_are_skipped() -> None:
    sealed = {"type": "encrypted_content", "encrypted_content": SEALED}
    [message] = said({**TASK, "content": [TASK["content"][0], sealed]})
    assert message["content"] == f"{HEAD}\nMessage Type: NEW_TASK\nPayload:\n"
    assert said({**TASK, "content": [sealed]}) == []
    assert said({**TASK, "content": []}) == []


def test_agent_message_with_text_and_image_is_read() -> None:
    assert said({**TASK, "content": "Hello"}) == [{"role": "user", "content": f"{HEAD}\nHello"}]
    image = {"type": "input_image", "image_url": "https://example.com/a.png"}
    [message] = said({**TASK, "content": [image]})
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]


@pytest.mark.parametrize("missing", ["author", "recipient", "content"])
def test_agent_message_without_required_field_is_400(missing: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_input([{name: value for name, value in TASK.items() if name != missing}])
    assert (caught.value.status, caught.value.param) == (400, f"input[0].{missing}")


def test_agent_reasoning_is_reasoning_of_the_model() -> None:
    reasoned = {"type": "agent_reasoning", "text": "Otters swim."}
    user, assistant = said({"role": "user", "content": "Hi"}, reasoned, {"role": "assistant", "content": "Ho"})
    assert (user["content"], assistant["content"]) == ("Hi", "Ho")
    assert assistant["reasoning_content"] == "Otters swim."


@pytest.mark.parametrize(
    "item", [SNAPSHOT, {"type": "context_compaction"}, {"type": "other"}], ids=lambda it: it["type"]
)
def test_marks_of_codex_are_accepted_and_not_read(item: Json) -> None:
    assert [each["content"] for each in said({"role": "user", "content": "Hi"}, item)] == ["Hi"]
    [kept] = parse_input([item])
    assert kept == {"type": item["type"]}


def test_context_compaction_with_summary_is_a_compaction() -> None:
    [item] = parse_input([{"type": "context_compaction", "id": "cmp_1", "encrypted_content": SEALED}])
    assert item == {"type": "compaction", "id": "cmp_1", "encrypted_content": SEALED}


def test_normal_form_is_accepted_unchanged() -> None:
    items = parse_input([TASK, SNAPSHOT, {"type": "agent_reasoning", "text": "x", "id": "rs_1"}])
    assert parse_input(items) == items


@pytest.mark.parametrize(
    ("sealed", "read"), [("The worker is done.", "The worker is done."), (SEALED, "(encrypted content that")]
)
def test_encrypted_part_of_output_is_read_where_it_is_text(sealed: str, read: str) -> None:
    part = {"type": "encrypted_content", "encrypted_content": sealed}
    [item] = parse_input([{"type": "function_call_output", "call_id": "c", "output": [part]}])
    assert item["output"][0]["type"] == "input_text"
    assert item["output"][0]["text"].startswith(read)


@pytest.mark.parametrize("action", [{}, {"action": None}, {"action": {"type": "other"}}])
def test_search_call_without_known_action_is_accepted(action: Json) -> None:
    [item] = parse_input([{"type": "web_search_call", "status": "completed", **action}])
    assert item["action"] == {"type": "search"}
