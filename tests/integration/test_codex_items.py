"""Threads with items of Codex are continued over HTTP and WebSocket, in conversations, and by a compaction."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire, output_text, roles_and_texts

pytestmark = pytest.mark.live

MODEL: Final = "codex-items"
SENT: Final[list[Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count the otters."}]},
    {
        "type": "agent_message",
        "id": "amsg_1",
        "author": "/root/worker",
        "recipient": "/root",
        "content": [
            {"type": "input_text", "text": "Message Type: FINAL_ANSWER\nPayload:\n"},
            {"type": "encrypted_content", "encrypted_content": "There are four."},
        ],
        "internal_chat_message_metadata_passthrough": {"turn_id": "t"},
    },
    {"type": "ghost_snapshot", "ghost_commit": {"id": "c0ffee", "parent": None}},
    {"type": "context_compaction"},
]
READ: Final = [
    ("user", "Count the otters."),
    (
        "user",
        "[Message from agent '/root/worker' to agent '/root']\nMessage Type: FINAL_ANSWER\nPayload:\nThere are four.",
    ),
]
TURNS: Final = [reply(text("Four.")), reply(text("Yes."))]
THREAD: Final = [*READ, ("assistant", "Four."), ("user", "Sure?")]


def seen(upstream: Upstream) -> list[tuple[str, str]]:
    """Return the messages of the last chat request."""
    return roles_and_texts(upstream.requests(MODEL)[-1].body["messages"])


def test_chain_of_responses_continues_from_items_of_codex(wire: Wire, upstream: Upstream) -> None:
    upstream.script(MODEL, TURNS)
    first = wire.create(model=f"local/{MODEL}", input=SENT)
    assert seen(upstream) == READ
    second = wire.create(model=f"local/{MODEL}", input="Sure?", previous_response_id=first["id"])
    assert (output_text(second), seen(upstream)) == ("Yes.", THREAD)
    listed = wire.get(f"/{first['id']}/input_items", order="asc").json()["data"]
    assert [each["type"] for each in listed] == [each["type"] for each in SENT]
    assert listed[1]["content"] == SENT[1]["content"]


def test_websocket_continues_from_items_of_codex(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(MODEL, TURNS)
    with WebSocketClient(stack) as websocket:
        websocket.ask(model=f"local/{MODEL}", input=SENT, store=False)
        first = websocket.response()
        websocket.ask(model=f"local/{MODEL}", input="Sure?", previous_response_id=first["id"], store=False)
        assert output_text(websocket.response()) == "Yes."
    assert seen(upstream) == THREAD


def test_conversation_with_items_of_codex_is_continued(wire: Wire, upstream: Upstream) -> None:
    upstream.script(MODEL, TURNS)
    conversation = wire.http.post("/conversations", json={"items": SENT}).json()["id"]
    wire.create(model=f"local/{MODEL}", conversation=conversation)
    assert seen(upstream) == READ
    wire.create(model=f"local/{MODEL}", input="Sure?", conversation=conversation)
    assert seen(upstream) == THREAD


def test_thread_with_items_of_codex_is_compacted_and_continued(wire: Wire, upstream: Upstream) -> None:
    upstream.script(MODEL, [reply(text("They counted four otters.")), reply(text("Four."))])
    answer = wire.http.post("/responses/compact", json={"model": f"local/{MODEL}", "input": SENT})
    assert answer.status_code == 200, answer.text
    first, second = seen(upstream)  # the request for a summary follows the last message
    assert (first, second[1].startswith(READ[1][1])) == (READ[0], True)
    wire.create(model=f"local/{MODEL}", input=[*answer.json()["output"], {"role": "user", "content": "How many?"}])
    assert "They counted four otters." in str(upstream.requests(MODEL)[-1].body["messages"])


@pytest.mark.parametrize("more", [{"id": "ig_1"}, {}])
def test_image_that_codex_has_cleared_is_a_note(
    wire: Wire, stack: LiveStack, upstream: Upstream, more: dict[str, Any]
) -> None:
    cleared: Any = {"type": "image_generation_call", "status": "completed", "revised_prompt": "x", "result": "", **more}
    sent = [SENT[0], cleared, {"role": "user", "content": "Sure?"}]
    upstream.script(MODEL, [reply(text("Yes."))] * 3)
    assert output_text(wire.create(model=f"local/{MODEL}", input=sent, store=False)) == "Yes."
    assert "left out here" in str(upstream.requests(MODEL)[-1].body["messages"])
    with WebSocketClient(stack) as websocket:
        websocket.ask(model=f"local/{MODEL}", input=sent, store=False)
        assert output_text(websocket.response()) == "Yes."
    answer = wire.http.post("/responses/compact", json={"model": f"local/{MODEL}", "input": sent})
    assert answer.status_code == 200, answer.text
