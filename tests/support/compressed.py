"""Compressed bodies, and short bodies that decompress to very long ones."""

import gzip
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

import brotli
import zstandard

BLOCK: Final = 131_072
"""Maximum decompressed size of a block of zstd in bytes."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_RUN: Final = 1 << 1
"""The type of a block of zstd that repeats one byte."""


def zstd(body: bytes) -> bytes:
    """Return the body as one frame."""
    return zstandard.ZstdCompressor().compress(body)


def raw_deflate(body: bytes) -> bytes:
    """Return the body without zlib's head and checksum."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


COMPRESSED: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "zstd": zstd,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=6),  # as short as with the default of 11, in a twentieth of the time
}
"""Compresses a body in each encoding."""


def header(encoding: str) -> dict[str, str]:
    """Return the header of a body with this encoding."""
    return {"content-encoding": encoding}


@cache
def bomb(encoding: str, blocks: int) -> bytes:
    """Return a body that decompresses to this many blocks of 128 KiB, as densely as the encoding can."""
    return zstd_bomb(blocks) if encoding == "zstd" else COMPRESSED[encoding](bytes(blocks * BLOCK))


def zstd_bomb(blocks: int, window: int = 0x50) -> bytes:
    """Return a frame with four bytes for each block of 128 KiB, the highest possible ratio.

    Args:
        blocks: number of blocks.
        window: the window descriptor of the frame; by default 1 MiB.
    """
    middle = (BLOCK << 3 | _RUN).to_bytes(3, "little") + b" "
    last = (BLOCK << 3 | _RUN | 1).to_bytes(3, "little") + b" "
    return _MAGIC + bytes([0, window]) + middle * (blocks - 1) + last
