"""The Markdown of a view is rendered within bounds; what exceeds them is shown as plain text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llama_stack_responses.core.types import Json
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.ui.blocks import MARKDOWN, Budget
from llama_stack_responses.ui.items import Reading, shown
from llama_stack_responses.ui.rendering import Renderer

SLOW = "[" * MARKDOWN
"""A text whose rendering takes quadratic time."""


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(PoolLimits())
    yield pool
    await pool.close()


def message(*texts: str) -> Json:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text} for text in texts],
    }


async def rendered(pool: WorkerPool, *items: Json, **options: Any) -> list[Json]:
    view = shown(items, Reading(Budget()))
    await Renderer(pool, **options).render(view, "alice")
    return view


async def test_markdown_is_rendered(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message("**a**", "b"))
    assert [block["html"] for block in view["blocks"]] == ["<p><strong>a</strong></p>\n", "<p>b</p>\n"]


async def test_text_too_slow_to_render_is_plain(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message(SLOW), seconds=0.3)
    assert view["blocks"] == [{"kind": "text", "text": SLOW, "truncated": False}]


async def test_text_too_long_to_render_is_plain(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message("x" * (MARKDOWN + 1)))
    assert view["blocks"][0]["kind"] == "text"


async def test_only_first_characters_of_a_view_are_rendered(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message(*["x" * 90_000] * 6))
    assert [block["kind"] for block in view["blocks"]] == ["markdown"] * 4 + ["text"] * 2
