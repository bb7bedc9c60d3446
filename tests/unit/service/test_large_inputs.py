"""No call of the encoder takes a whole large input: it would hold the interpreter lock, and so the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
import pytest

from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

ITEM_CHARACTERS: Final = 100_000
ITEMS: Final = 50
PIECE_BYTES: Final = 2**21
"""Twice what the check of a request encodes at a time."""


@pytest.fixture
async def impl() -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers twice."""
    created = server(MemoryRecords(), FakeInference(*[[text("Yes."), finish()]] * 2), SingleUserAccess())
    yield created
    await created.shutdown()


@pytest.mark.parametrize("continues", [False, True])
async def test_large_input_of_a_stored_stream_is_encoded_in_pieces(
    impl: OpenAIResponsesImpl, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    dumps = orjson.dumps

    def measured(value: Any, *args: Any, **options: Any) -> bytes:
        result = dumps(value, *args, **options)
        encoded.append(len(result))
        return result

    async def create(**fields: Any) -> Json:
        run = await impl.create({"model": "m", "stream": True, **fields})
        assert isinstance(run, ForegroundRun)
        while await run.event_buffer.get(60) is not None:
            pass
        return await run.finish()

    before = {"previous_response_id": (await create(input="Hi"))["id"]} if continues else {}
    monkeypatch.setattr(orjson, "dumps", measured)
    await create(input=[{"role": "user", "content": "x" * ITEM_CHARACTERS}] * ITEMS, **before)
    monkeypatch.undo()
    assert max(encoded) <= PIECE_BYTES
