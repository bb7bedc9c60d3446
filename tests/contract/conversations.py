"""Responses as an archive receives them."""

from __future__ import annotations

import random
from typing import Any, Final

from llama_stack_responses.core import ids
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.stream.response import UNSENT

type Json = dict[str, Any]

CREATED = 1_790_000_000
"""When the responses are created, and the initial time of the tests' clock."""


TAGS: Final = [0]
"""The tag of the responses of a test, which are of one chain: its last."""


def new_id(prefix: str) -> str:
    return ids.new_id(prefix, TAGS[-1])


def user(text: str, **fields: Any) -> Json:
    content = [{"type": "input_text", "text": text}]
    return {"id": new_id("msg"), "type": "message", "role": "user", "status": "completed", "content": content, **fields}


def assistant(text: str, **fields: Any) -> Json:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        **fields,
    }


async def stored_item(archive: Archive, owner: Owner, item_id: str) -> Json | None:
    """Return the item of this id that is stored for this owner."""
    return {found: item async for found, item in archive.find_items(owner, [item_id])}.get(item_id)


def response(*output: Json, **fields: Any) -> Json:
    """Return a response object with every field that OpenAI's has."""
    return {
        **UNSENT,
        "id": new_id("resp"),
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "billing": {"payer": "developer"},
        "completed_at": CREATED + 3,
        "error": None,
        "incomplete_details": None,
        "model": "openai/gpt-oss-20b",
        "moderation": None,
        "output": list(output),
        "reasoning": {"effort": "medium", "summary": None},
        "service_tier": "default",
        "tools": [],
        "usage": {
            "input_tokens": 1234,
            "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
            "output_tokens": 321,
            "output_tokens_details": {"reasoning_tokens": 64},
            "total_tokens": 1555,
        },
        **fields,
    }


class Prose:
    """Text that compresses about as little as natural language: random words from a list of 2,000."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        self._words = ["".join(self._random.choices(letters, k=self._random.randint(2, 11))) for _ in range(2000)]

    def text(self, size: int) -> str:
        """Return `size` characters."""
        words: list[str] = []
        length = 0
        while length < size:
            words.append(self._random.choice(self._words))
            length += len(words[-1]) + 1
        return " ".join(words)[:size]
