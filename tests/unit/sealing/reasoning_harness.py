"""Reasoning from a model's chunks, through the items that a client carries, back to the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealed_items import Opened, SealedItems
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import FUNCTION
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from tests.support.strict import check_stream

Json = dict[str, Any]

OLD: Final = bytes(32)
NEW: Final = bytes(range(32))
ANNA: Final = Owner("anna")
USER: Final[Json] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def private(*secrets: bytes, owner: Owner = ANNA) -> PrivateReasoning:
    """Return the private reasoning of a user."""
    return PrivateReasoning(Sealer(secrets or [NEW]), owner)


async def check(seals: PrivateReasoning, items: Sequence[Json]) -> None:
    """Check items that the owner of these seals sends."""
    await SealedItems(seals.sealer, 2**20).open(items, seals.owner, Opened(), verify=True)


def output(
    *chunks: ChatCompletionChunk,
    seals: PrivateReasoning | None = None,
    summaries: bool = False,
    profile: Profile | None = None,
) -> list[Json]:
    """Return the items built from a model's chunks, after checking that their events rebuild them."""
    reader = ChunkReader(profile or Profile(), 10_000_000, summaries=summaries)
    request = parse_create({"model": "m", "input": "hi"})
    assembler = Assembler(
        new_response(request, id="resp_1", created_at=1), lambda _: FUNCTION, seal=(seals or private()).seal
    )
    events = assembler.start()
    for delta in [*(delta for each in chunks for delta in reader.read(each)), *reader.end()]:
        events += assembler.feed(delta)
    assembler.set_outcome("completed", completed_at=2)
    events += assembler.end()
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(assembler.response, transcript.marks())) == events
    items: list[Json] = check_stream(events)["output"]
    return items


def sent_back(item: Json) -> Json:
    """Return the item as sent back by a client that keeps only the sealed value."""
    return {key: item[key] for key in ("type", "summary", "encrypted_content")}


def replayed(items: list[Json], profile: Profile, seals: PrivateReasoning | None = None) -> Json:
    """Return the assistant message that the model receives."""
    read = (seals or private()).read
    message: Json = chat_messages([USER, *items], profile, all_reasoning=True, read_reasoning=read)[1]
    return message
