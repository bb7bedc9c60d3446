"""Packing works on few rows in one step of the event loop, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import override

import pytest

from llama_stack_responses.features.cold import packing
from llama_stack_responses.features.cold.prefixes import PAGES
from llama_stack_responses.features.cold.rows import Chain, Release
from llama_stack_responses.features.cold.units import Found, Unit
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Put, Records
from llama_stack_responses.store.wrapped import WrappedRecords
from tests.contract.conversations import CREATED, assistant, response
from tests.contract.test_cold import ALICE
from tests.support.cold import ColdStore, in_folder
from tests.support.loop_steps import steps_of_event_loop

_RESPONSES = 300
_MOST = 140
"""What is read, decoded, packed or freed at a time, with some other rows."""


async def test_each_step_of_packing_works_on_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = ColdStore(MemoryRecords(), in_folder(tmp_path), lambda: CREATED)
    for number in range(_RESPONSES):
        await here.archive.save(response(assistant(f"answer {number}")), owner=ALICE, base=None, input_items=[])
    here.packing._keep_seconds = 0
    with steps_of_event_loop() as steps:
        for module, name in ((codec, "parse"), (Chain, "decode"), (Release, "decode")):
            monkeypatch.setattr(module, name, steps.counted(getattr(module, name)))
        for kind in (Found, Unit, Chain, Release):
            monkeypatch.setattr(kind, "__del__", lambda self: steps.note(f"free {type(self).__name__}"), raising=False)
        for _ in range(2):
            await here.packing.work()
    assert len(await here.packed()) == _RESPONSES
    assert {name: most for name, most in steps.most.items() if most > _MOST} == {}
    assert all(steps.total[f"free {kind.__name__}"] >= _RESPONSES for kind in (Found, Unit, Chain, Release))


class _PagesWritten(WrappedRecords):
    """Counts how often each page is written."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.times = Counter[str]()

    @override
    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        self.times.update(op.key for op in ops if isinstance(op, Put) and op.key.startswith(PAGES))


async def test_page_is_written_once_for_all_rows_that_it_gets_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = _PagesWritten(MemoryRecords())
    here = ColdStore(records, in_folder(tmp_path), lambda: CREATED)
    here.packing._keep_seconds = 0
    monkeypatch.setattr(packing, "_ROWS", 10)
    for _ in range(2):
        for number in range(_RESPONSES):
            await here.archive.save(response(assistant(f"answer {number}")), owner=ALICE, base=None, input_items=[])
        records.times.clear()
        for _ in range(2):
            await here.packing.work()
    assert len(await here.packed()) == 2 * _RESPONSES
    # A page of 128 rows gets them in at most three commits of 64; of the rows of ten chains at a time, in thirty.
    assert len(records.times) > 10
    assert max(records.times.values()) <= 4
