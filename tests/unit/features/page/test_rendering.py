"""The Markdown of a view is rendered within bounds; what exceeds them is shown as plain text."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest

from llama_stack_responses.core import json_decoding
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.page.blocks import MARKDOWN_CHARACTERS, Budget, as_json
from llama_stack_responses.features.page.item_views import ViewContext, item_views
from llama_stack_responses.features.page.rendering import Renderer
from llama_stack_responses.process_pool.pool import PoolLimits, Task, WorkerPool
from llama_stack_responses.process_pool.time_budget import TimeBudget

SLOW = "[" * MARKDOWN_CHARACTERS
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
    view = item_views(items, ViewContext(Budget()))
    await Renderer(pool, **options).render(view)
    return view


async def test_markdown_is_rendered(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message("**a**", "b"))
    assert [block["html"] for block in view["blocks"]] == ["<p><strong>a</strong></p>\n", "<p>b</p>\n"]


async def test_text_too_slow_to_render_is_plain(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message(SLOW), seconds=0.3)
    assert view["blocks"] == [{"kind": "text", "text": SLOW, "truncated": False}]


@pytest.mark.relatives
@pytest.mark.parametrize(
    "bomb",
    [
        "".join(f"{'  ' * depth}- x\n" for depth in range(300)),
        "- " * 10_000 + "x",
        "> " * 10_000 + "x",
        "|" + "a|" * 1000 + "\n|" + "-|" * 1000 + "\n" + ("|" * 1000 + "\n") * 90,
        "*a " * 30_000,
        "![" * 20_000 + "](https://tracker.example/x.png)" * 1000,
        "[a]: <https://example.org>\n" + "[a]" * 30_000,
        "`" * 50_000 + "<script>",
        "\u202e" * 90_000,
    ],
    ids=["steps", "lists", "quotes", "table", "emphasis", "images", "references", "ticks", "bidi"],
)
async def test_bomb_of_markdown_ends_within_bounds(pool: WorkerPool, bomb: str) -> None:
    [item] = await rendered(pool, message(bomb))
    [block] = item["blocks"]
    assert block["text"] == bomb
    html = block.get("html") or ""
    assert len(html) < 32 * 2**20
    assert html.count("<ul>") + html.count("<blockquote>") <= 300
    assert "<img" not in html
    assert "<script" not in html


async def test_text_too_long_to_render_is_plain(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message("x" * (MARKDOWN_CHARACTERS + 1)))
    assert view["blocks"][0]["kind"] == "text"


async def test_only_first_characters_of_a_view_are_rendered(pool: WorkerPool) -> None:
    [view] = await rendered(pool, message(*["x" * 90_000] * 6))
    assert [block["kind"] for block in view["blocks"]] == ["markdown"] * 4 + ["text"] * 2


class AnsweringPool(WorkerPool):
    """A pool whose worker answers with this text."""

    def __init__(self, text: str) -> None:
        super().__init__(PoolLimits())
        self._text = text

    async def run(self, task: Task, budget: TimeBudget | None = None) -> Mapping[str, str]:
        """Return the answer."""
        return {"text": self._text}


@pytest.mark.parametrize("text", ["[", '"a"', "{}", '["<p>a</p>"]', '["<p>a</p>",1]', '["a","b","c"]', "[[],[]]"])
async def test_answer_of_other_form_makes_texts_plain(text: str) -> None:
    [view] = await rendered(AnsweringPool(text), message("a", "b"))
    assert [block["kind"] for block in view["blocks"]] == ["text", "text"]


async def test_large_html_is_decoded_outside_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    go, pieces = threading.Event(), json_decoding.loads

    def wait(document: bytes | bytearray) -> Any:
        assert go.wait(60)
        return pieces(document)

    monkeypatch.setattr(json_decoding, "loads", wait)
    html = "<p>wörd</p>" * 100_000
    rendering = asyncio.create_task(rendered(AnsweringPool(json.dumps([html, ""])), message("a", "b")))
    await asyncio.sleep(0.01)
    assert not rendering.done()
    go.set()
    [view] = await rendering
    assert [block["html"] for block in view["blocks"]] == [html, ""]


def test_value_of_megabytes_is_encoded_as_far_as_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    dumps = orjson.dumps

    def spy(value: Any) -> bytes:
        encoded.append(len(encoded_value := dumps(value)))
        return encoded_value

    monkeypatch.setattr(orjson, "dumps", spy)
    block = as_json({"a": ["wörd" * 1_000] * 2_000}, Budget())
    assert (len(block["text"]), block["truncated"]) == (200_000, True)
    assert sum(encoded) < 400_000


def test_short_value_with_many_members_is_indented() -> None:
    assert as_json([1] * 30_000, Budget())["text"].startswith("[\n  1,\n  1,")
