"""Which stores `restore` takes as empty."""

from __future__ import annotations

from llama_stack_responses.features.admin.backup_commands import _has_rows
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.secret_check import SecretCheck
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store.kept_secret import SecretRow
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put


async def test_store_with_only_the_secrets_of_its_servers_is_empty() -> None:
    records = MemoryRecords()
    await SecretCheck(records, Sealer([], SecretRow(records)), DEFAULT).check()
    assert len(await records.range("!", "~", limit=9)) == 2
    assert not await _has_rows(records)
    await records.commit([Put("r/resp_1", b"x")])
    assert await _has_rows(records)
