"""A safetensors reader: headers first, then tensors as memory-mapped views without a copy."""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from .errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16, "U8": torch.uint8}
DTYPES |= {"I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool}
HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The location of a tensor: bytes start to end of a file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsReader:
    """Reads the tensors of a checkpoint by name. The index maps names to files."""

    def __init__(self, locations: Mapping[str, TensorLocation]) -> None:
        self.locations = locations
        self._maps: dict[Path, mmap.mmap] = {}

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read every header of the checkpoint; CheckpointError if a file is missing, truncated or damaged."""
        locations: dict[str, TensorLocation] = {}
        for file, wanted in _files(folder).items():
            header = _read_header(file)
            if missing := sorted(wanted - header.keys()):
                raise CheckpointError(f"{file} lacks {missing[0]}, which the index says it holds: download it again")
            locations.update(header if not wanted else {name: header[name] for name in wanted})
        return cls(locations)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A tensor that still views a file keeps the mapping alive.
        self._maps.clear()

    def view(self, name: str) -> torch.Tensor:
        """Return a memory-mapped tensor: pages are read on access, and the kernel may evict them."""
        location = self.locations[name]
        count = (location.end - location.start) // location.dtype.itemsize
        flat = torch.frombuffer(self._map(location.file), dtype=location.dtype, count=count, offset=location.start)
        return flat.view(location.shape)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as opened:
                # A private mapping, since torch requires writable memory; nothing is written.
                self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[file]


def _files(folder: Path) -> dict[Path, set[str]]:
    """Return each file with its tensors by the index; with an empty set if there is no index."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise CheckpointError(f"{folder} has neither {INDEX} nor {SINGLE}: its download is incomplete")
        return {folder / SINGLE: set()}
    try:
        entries = json.loads(index.read_bytes())["weight_map"].items()
    except (ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f"{index} is damaged: download it again") from None
    files: dict[Path, set[str]] = {}
    for name, file in entries:
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{index} names a file outside the checkpoint for {name}: download it again")
        files.setdefault(folder / file, set()).add(name)
    if gone := sorted(file.name for file in files if not file.is_file()):
        raise CheckpointError(
            f"{folder} lacks {len(gone)} of {len(files)} weight files, first {gone[0]}: download them"
        )
    return files


def _read_header(file: Path) -> dict[str, TensorLocation]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_BYTES):
            raise CheckpointError(f"{file} is damaged: it has {size:,} bytes and no readable header; download it again")
        raw = opened.read(length)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        locations = {name: _location(file, entry, 8 + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file} is damaged: its header cannot be read; download it again") from None
    end = max((location.end for location in locations.values()), default=8 + length)
    if end != size:
        raise CheckpointError(
            f"{file} is incomplete: it has {size:,} bytes, its header says {end:,}; download it again"
        )
    return locations


def _location(file: Path, entry: dict[str, Any], base: int) -> TensorLocation:
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = DTYPES[entry["dtype"]]
    if start < 0 or end - start != _count(shape) * dtype.itemsize:
        raise ValueError("sizes disagree")
    return TensorLocation(file, dtype, shape, base + start, base + end)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
