"""Work that looks at few items stays in the event loop, whatever they hold."""

from __future__ import annotations

import threading

import pytest

from llama_stack_responses.concurrency.offloading import INLINE_BYTES, in_thread_if_many


@pytest.mark.parametrize(("count", "in_loop"), [(1, True), (500, True), (501, False)])
async def test_work_on_items_leaves_event_loop_only_if_they_are_many(count: int, *, in_loop: bool) -> None:
    items = [{"type": "message", "content": "x" * INLINE_BYTES}] * count
    thread = await in_thread_if_many(threading.get_ident, items)
    assert (thread == threading.get_ident()) is in_loop
