"""The settings of an engine process."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from os import O_DIRECTORY, O_RDONLY, close
from os import open as open_folder
from pathlib import Path
from typing import Literal, Self

ADDRESS_BYTES = 100  # bytes; the kernel's limit is 107
# Settings that versions after 0.1.0 added.
LATER: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of an engine. All processes with equal settings, and so the same folder, share one engine.

    folder: folder of the socket. context: None for the maximum that the model and the memory allow.
    memory_share: fraction of the GPU's memory that may be in use, by all processes together.
    tensor_parallel_size: number of devices that compute each step together, from `device` on.
    drafts: maximum number of tokens that a step drafts for a sequence. draft_head: folder of an EAGLE-3 head.
    dependent_launch: use programmatic dependent launch, if the device has it.
    """

    folder: str
    checkpoint: str
    device: str = "auto"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    kv_dtype: Literal["auto", "fp8"] = "auto"
    memory_share: float = 0.9
    context: int | None = None
    sequences: int = 64
    step_tokens: int = 2048
    waiting: int = 256
    drafts: int = 0
    tensor_parallel_size: int = 1
    draft_head: str | None = None
    dependent_launch: bool = True

    @property
    def socket(self) -> Path:
        """The path of the socket. Its name is a hash of the settings, so each engine has its own.

        A setting of a later version is left out while it has its default: an engine that an earlier version started is
        found under the same name.
        """
        named = asdict(self)
        for field in fields(self):
            if field.name in LATER and named[field.name] == field.default:
                del named[field.name]
        name = hashlib.blake2b(json.dumps(named, sort_keys=True).encode(), digest_size=6).hexdigest()
        return Path(self.folder) / f"engine-{name}.sock"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@contextmanager
def address(socket: Path) -> Iterator[str]:
    """Yield the path to bind or connect to; one that is too long is replaced by a short one through its open folder."""
    if len(str(socket).encode()) <= ADDRESS_BYTES:
        yield str(socket)
        return
    folder = open_folder(socket.parent, O_RDONLY | O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        close(folder)
