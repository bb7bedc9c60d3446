"""The container that the calls of one request work in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.sandbox.containers import Containers
from llama_stack_responses.sandbox.places import Places
from llama_stack_responses.tools.hosted.container_choice import ContainerChoice, Site
from tests.unit.sandbox.test_container import BOUNDS, jail, volumes


async def none_uploaded(file_id: str) -> Any:
    raise AssertionError(file_id)


async def test_calls_at_once_work_in_one_new_container(tmp_path: Path) -> None:
    containers = Containers(
        jail(), BOUNDS, volumes(in_memory=False), tmp_path / "containers", idle_seconds=60, places=Places(2, 2)
    )
    choice = ContainerChoice(Site(containers, lambda: ANONYMOUS, none_uploaded), {})
    choice.choose([])

    async def call() -> str:
        async with choice.opened() as entry:
            return entry.id

    try:
        assert await asyncio.gather(*(call() for _ in range(4))) == [choice.container_id] * 4
    finally:
        await containers.close()
