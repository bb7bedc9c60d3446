"""A rank of an engine other than rank 0: it computes its shard of each step that rank 0 announces.

python -m llama_stack_gpt_oss.process.follower SETTINGS RANK CONNECTION PARENT
"""

import ctypes
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Final

from ..engine.errors import EngineError
from .rank_processes import END
from .settings import EngineSettings

PR_SET_PDEATHSIG: Final = 1


class RankConnection:
    """The connection to rank 0."""

    def __init__(self, rank: int, connection: Connection) -> None:
        self.rank = rank
        self._connection = connection

    def start(self) -> None:
        """Do nothing: rank 0 starts the others."""

    def announce(self, step: object) -> None:
        """Raise AssertionError: only rank 0 announces steps."""
        raise AssertionError(step)

    def agree(self, blocks: int) -> int:
        """Return the number of KV cache blocks that all ranks have room for."""
        self._connection.send(blocks)
        agreed: int = self._connection.recv()
        return agreed


def main(settings: EngineSettings, rank: int, connection: Connection) -> int:
    """Run the process until rank 0 ends it; return the exit status."""
    try:
        _follow(settings, RankConnection(rank, connection), connection)
    except EngineError as error:
        connection.send(str(error))
        return 1
    return 0


def _follow(settings: EngineSettings, own: RankConnection, connection: Connection) -> None:
    import torch

    from .assembly import assemble_follower

    follower = assemble_follower(settings, own)
    gc.freeze()
    try:
        while (step := connection.recv()) != END:
            follower.follow(step)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"Rank {own.rank} has too little memory for steps of {settings.step_tokens:,} tokens next to the KV cache:"
            " lower memory_share, prefill_tokens or max_batch"
        ) from error


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when rank 0 ends, since it may wait for rank 0 on the device."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it has ended before


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    _end_with(int(sys.argv[4]))
    sys.exit(main(EngineSettings.from_json(sys.argv[1]), int(sys.argv[2]), Connection(int(sys.argv[3]))))
