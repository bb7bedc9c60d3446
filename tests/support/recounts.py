"""Recounts of stored bytes, whenever a test wants one."""

from llama_stack_responses.features.usage.limits.recount import TURN, Recount
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.records import Delete, Records


async def at_once(_: int) -> None:
    """Read on without a pause."""


async def recount(records: Records) -> None:
    """Recount now, whoever has recounted before."""
    await records.commit([Delete(TURN)])
    await Recount(records, Decoder(), at_once).run()
