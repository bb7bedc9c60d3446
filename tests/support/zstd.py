"""Bodies that are compressed with zstd, and short bodies that decompress to very long ones."""

from typing import Final

import zstandard

HEADER: Final = {"content-encoding": "zstd"}
BLOCK: Final = 131_072
"""Maximum decompressed size of a block in bytes."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_RUN: Final = 1 << 1
"""The type of a block that repeats one byte."""


def compressed(body: bytes) -> bytes:
    """Return the body as one frame."""
    return zstandard.ZstdCompressor().compress(body)


def bomb(blocks: int, window: int = 0x50) -> bytes:
    """Return a frame with four bytes for each block of 128 KiB, the highest possible ratio.

    Args:
        blocks: number of blocks.
        window: the window descriptor of the frame; by default 1 MiB.
    """
    middle = (BLOCK << 3 | _RUN).to_bytes(3, "little") + b" "
    last = (BLOCK << 3 | _RUN | 1).to_bytes(3, "little") + b" "
    return _MAGIC + bytes([0, window]) + middle * (blocks - 1) + last
