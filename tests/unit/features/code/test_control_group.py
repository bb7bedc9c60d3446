"""Control groups: how they are found, what is written to them, and, on machines that have some, their limits.

The last tests need a cgroup v2 that this process may use: one delegated to it, or one named by TEST_CONTROL_GROUP.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.features.code.containers.entries import ContainerEntry, Containers
from llama_stack_responses.features.code.containers.opening import open_containers
from llama_stack_responses.features.code.network.network import Networks
from llama_stack_responses.features.code.sandbox import control_group
from llama_stack_responses.features.code.sandbox.control_group import ControlGroups, GroupLimits, open_control_groups
from llama_stack_responses.features.code.sandbox.processes import Processes
from llama_stack_responses.features.code.settings import CodeInterpreter, ContainerNetwork
from tests.support.descendants import descendants
from tests.unit.features.code.test_container import BOUNDS, MIB, admission, jail, volumes

LIMITS = GroupLimits(64 * MIB, 10, 1.5)


def group(place: Path, *, controllers: str = "cpu memory pids", on: str = "") -> Path:
    """Create a folder with the files of a control group."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in {"cgroup.controllers": controllers, "cgroup.subtree_control": on, "cgroup.procs": ""}.items():
        (place / name).write_text(content)
    return place


def found(monkeypatch: pytest.MonkeyPatch, own: Path, user: int) -> Path | None:
    """Return the group that a process of this user finds."""
    monkeypatch.setattr(control_group, "_own", lambda: own)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    groups = open_control_groups(None)
    return groups._parent if groups else None


def test_own_group_of_user_is_used_with_controllers_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = group(tmp_path / "own", on="memory")
    assert found(monkeypatch, own, 1000) == own
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +pids"


def test_parent_group_is_used_if_own_one_is_not_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = group(group(tmp_path / "service", on="cpu memory pids") / "server")
    (own / "cgroup.subtree_control").unlink()
    assert found(monkeypatch, own, 1000) == own.parent


def test_root_uses_only_delegated_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = group(tmp_path / "own", on="cpu memory pids")
    assert found(monkeypatch, own, 0) is None
    monkeypatch.setattr(os, "getxattr", lambda _, name: b"1" if name == "user.delegate" else b"0")
    assert found(monkeypatch, own, 0) == own


def test_unusable_configured_group_is_reported(tmp_path: Path) -> None:
    config = CodeInterpreter(folder=tmp_path, control_group=tmp_path / "none")
    with pytest.raises(
        WrongConfiguration, match=r"'control_group' of 'code_interpreter' cannot be used: .* Give it a cgroup v2"
    ):
        open_containers(config, jail())


def test_limits_are_written_without_swap(tmp_path: Path) -> None:
    groups = ControlGroups(group(tmp_path)).make("cntr_a", LIMITS)
    written = {place.name: place.read_text() for place in groups.folder.iterdir()}
    assert written == {
        "memory.max": str(64 * MIB),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "pids.max": "18",
        "cpu.max": "150000 100000",
    }


def test_sweep_removes_only_unlocked_groups(tmp_path: Path) -> None:
    groups = ControlGroups(group(tmp_path))
    (tmp_path / "cntr_left").mkdir()
    (tmp_path / "cntr_used").mkdir()
    (tmp_path / "other").mkdir()
    used = os.open(tmp_path / "cntr_used", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_EX)
    groups.sweep("cntr_*")
    os.close(used)
    assert {place.name for place in tmp_path.iterdir() if place.is_dir()} == {"cntr_used", "other"}


# In real groups


def real() -> ControlGroups | None:
    named = os.environ.get("TEST_CONTROL_GROUP")
    return open_control_groups(Path(named) if named else None)


needs_groups = pytest.mark.skipif(not real(), reason="this process has no control group of its own")


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[Containers]:
    created = Containers(
        jail(), BOUNDS, volumes(), tmp_path / "c", idle_seconds=60, admission=admission(2, 2), groups=real()
    )
    yield created
    await created.close()


@pytest.fixture
async def entry(containers: Containers) -> ContainerEntry:
    return await containers.create(Owner("anna", {}))


async def test_group_of_a_container_with_a_network_has_room_for_its_proxy(tmp_path: Path) -> None:
    groups = ControlGroups(group(tmp_path / "groups"))
    made = Containers(
        jail(), BOUNDS, volumes(), tmp_path / "files", idle_seconds=60, groups=groups, admission=admission(9, 9)
    )
    networks = Networks(ContainerNetwork(allowed_domains=["*"]), [], [], [])
    network = networks.open(networks.accept({"type": "allowlist", "allowed_domains": ["example.com"]}), "cntr_b")
    written = []
    for name, given in (("cntr_a", None), ("cntr_b", network)):
        container, lock = made._prepared(tmp_path / "files" / name, given)
        assert container.group
        written.append([(container.group.folder / each).read_text() for each in ("memory.max", "pids.max", "cpu.max")])
        await container.kill()
        lock.release()
    cpu = "100000 100000"
    assert written == [[str((512 + 16) * MIB), "40", cpu], [str((512 + 16 + 64) * MIB), "80", cpu]]


@needs_groups
async def test_all_processes_of_container_are_in_its_group(containers: Containers, entry: ContainerEntry) -> None:
    await entry.container.run("1")
    assert entry.container._running
    assert entry.container.group
    place = entry.container.group.folder
    inside = set(map(int, (place / "cgroup.procs").read_text().split()))
    assert inside == descendants(entry.container._running.process.pid)
    assert (place / "memory.max").read_text() == f"{(512 + 16) * MIB}\n"
    assert (place / "memory.swap.max").read_text() in {"0\n"}
    assert (place / "pids.max").read_text() == f"{BOUNDS.processes + 8}\n"
    assert (place / "cpu.max").read_text() == "100000 100000\n"
    await containers.end(entry.id)
    assert not place.exists()


HIDDEN = """
import os, time
for _ in range(3): os.fork()
x = bytearray(100 * 2**20)
time.sleep(200)
"""


@needs_groups
async def test_kernel_limits_memory_that_checks_miss(entry: ContainerEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "memory_bytes", lambda *_: 0)
    entry.container._bounds = replace(BOUNDS, seconds=200)
    ran = await entry.container.run(HIDDEN)
    assert ran.stopped == "It used more than 512 MiB of memory."
    assert (await entry.container.run("1")).printed == "1\n"


@needs_groups
async def test_group_of_dead_server_is_removed_with_its_processes(
    containers: Containers, entry: ContainerEntry
) -> None:
    group, groups = entry.container.group, real()
    assert group
    assert groups
    await entry.container.run("1")
    groups.sweep("cntr_*")
    assert group.folder.exists()
    fcntl.flock(group._lock, fcntl.LOCK_UN)
    groups.sweep("cntr_*")
    assert not group.folder.exists()
    assert (await entry.container.run("1")).stopped is not None


@needs_groups
async def test_processor_time_is_limited(entry: ContainerEntry) -> None:
    code = "import os, time\nfor _ in range(2): os.fork()\nend = time.time() + 4\nwhile time.time() < end: pass"
    await entry.container.run(code)
    assert entry.container.group
    stat = dict(each.split() for each in (entry.container.group.folder / "cpu.stat").read_text().splitlines())
    assert int(stat["nr_periods"]) > 0
