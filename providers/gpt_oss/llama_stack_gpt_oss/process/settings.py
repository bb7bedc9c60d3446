"""What an engine process is started with."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import O_DIRECTORY, O_RDONLY, close
from os import open as open_folder
from pathlib import Path
from typing import Literal, Self

LONGEST_ADDRESS = 100  # bytes; the system takes 107


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Equal settings in one folder mean one engine, which all processes that ask for it share.

    folder: where the socket lies. context: None for as much as the model and the memory allow.
    memory_share: how much of the GPU's memory, by everyone on it, the engine may fill.
    """

    folder: str
    checkpoint: str
    device: str = "auto"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    memory_share: float = 0.9
    context: int | None = None
    sequences: int = 64
    step_tokens: int = 2048
    waiting: int = 256

    @property
    def socket(self) -> Path:
        """Named after the settings, so that engines with other settings have other sockets."""
        name = hashlib.blake2b(self.to_json().encode(), digest_size=6).hexdigest()
        return Path(self.folder) / f"engine-{name}.sock"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@contextmanager
def address(socket: Path) -> Iterator[str]:
    """The path to bind or connect to: where it is too long for the system, a short one by way of its open folder."""
    if len(str(socket).encode()) <= LONGEST_ADDRESS:
        yield str(socket)
        return
    folder = open_folder(socket.parent, O_RDONLY | O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        close(folder)
