"""Direct writes to a stack's store, as by another worker of the server: old responses, or very many.

[*_, last] = seed(stack.state_dir / "responses.db", [("Hi", "Hello"), ("And?", "Well.")])
seed(database, [("Hi", "Hello")], age=31 * DAY, owner=Owner("ada"))
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.stream.response import new_response

type Json = dict[str, Any]

DAY: Final = 86_400.0
MODEL: Final = "local/seeded"
"""The model of the seeded responses."""


def seed(database: Path, turns: Sequence[tuple[str, str]], *, age: float = 0.0, owner: Owner = ANONYMOUS) -> list[Json]:
    """Store a chain of `(question, answer)`, `age` seconds old; return its responses."""
    return asyncio.run(_seed(database, turns, int(time.time() - age), owner))


async def _seed(database: Path, turns: Sequence[tuple[str, str]], created_at: int, owner: Owner) -> list[Json]:
    archive = Archive(SqliteRecords(database, busy_timeout=60.0), retention=None)
    created: list[Json] = []
    base: str | None = None
    for question, answer in turns:
        previous = created[-1]["id"] if created else None
        request = parse_create({"model": MODEL, "input": question, "previous_response_id": previous})
        response = new_response(request, id=new_id("resp"), created_at=created_at)
        response |= {"status": "completed", "completed_at": created_at, "output": [_message(answer)]}
        items = with_ids(request.input_items)
        await archive.save(response, owner=owner, base=base, input_items=items)
        base = Hasher(owner).histories(base, [*items, *response["output"]])[-1]
        created.append(response)
    await archive.close()
    return created


def _message(text: str) -> Json:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    }
