"""The Skills API without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from threading import Lock
from typing import Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.code.skills import bundle, service
from llama_stack_responses.features.code.skills.declared import SkillReader
from llama_stack_responses.features.code.skills.store import SkillQuota, SkillStore
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.shares import as_user
from tests.support.skills import FILES

ADA: Final = Owner("ada", {})
FOLDER: Final = [service.UploadedFile(*file) for file in FILES.items()]


class Packing:
    """Packs folders slowly, and counts how many at a time."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = Lock()

    def __call__(self, files: Sequence[tuple[str, bytes]]) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.02)
        with self._lock:
            self._now -= 1
        return bundle.packed(files)


async def test_folders_of_one_user_are_packed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing takes seconds. Other users need the threads."""
    packing = Packing()
    monkeypatch.setattr(service, "packed", packing)
    access, store, pool = SingleUserAccess(ADA), SkillStore(MemoryRecords()), WorkerPool(PoolLimits())
    large_work = LargeWork()
    reader = SkillReader(Admission(Quota("files", 2**20, 2**20)), access.current_user, store)
    skills = service.Skills(store, reader, pool, access, SkillQuota(9, 9, 2**20), large_work)
    await asyncio.gather(*(as_user("one", skills.create(FOLDER)) for _ in range(5)))
    assert packing.most == 1
    large_work.close()
    await pool.close()
