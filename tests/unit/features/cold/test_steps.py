"""Packing works on few rows in one step of the event loop, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_stack_responses.features.cold.rows import Chain, Release
from llama_stack_responses.features.cold.units import Found, Unit
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
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
