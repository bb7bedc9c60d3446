"""The form of a packed chain: its rows, compressed together and encrypted with a key of its own.

    1 byte     format
    the rest   AES-256-GCM of zstd of, for each row: length of the key (2 bytes), length of the value (4); the key; the
               value without the compression of the store

Each key encrypts one chain only, and the nonce is the number of what it encrypts of it: 0 for the rows of the chain,
and from 1 on for its large rows, each by itself. The form is read by all later versions.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from struct import Struct
from typing import Final

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ...store import codec

_FORMAT: Final = b"\1"
_NONCE_BYTES: Final = 12
_ROW: Final = Struct(">HI")
_LEVEL: Final = 9
_MAX_BYTES: Final = 2**30
"""Most bytes of a chain's rows, far above what is packed."""
_ENCODED: Final = ("n/", "r/", "b/", "cr/", "m/")
"""Prefixes of rows whose values `codec` encodes."""

type Rows = Sequence[tuple[str, bytes]]
"""Keys and values."""


def packed(rows: Rows) -> tuple[bytes, bytes]:
    """Return a packed chain, and its key."""
    key = secrets.token_bytes(32)
    return _sealed(rows, key, 0), key


def packed_part(row: tuple[str, bytes], key: bytes, number: int) -> bytes:
    """Return a large row of the chain with this key, packed by itself; no two of a chain have the same number."""
    return _sealed([row], key, number)


def _sealed(rows: Rows, key: bytes, number: int) -> bytes:
    body = bytearray()
    for name, value in rows:
        plain = codec.unpacked(value) if name.startswith(_ENCODED) else value
        body += _ROW.pack(len(name), len(plain)) + name.encode("ascii") + plain
    compressed = zstandard.ZstdCompressor(level=_LEVEL).compress(body)
    return _FORMAT + AESGCM(key).encrypt(number.to_bytes(_NONCE_BYTES), compressed, _FORMAT)


def opened(data: bytes, key: bytes, number: int = 0) -> Rows:
    """Return the rows of a packed chain, or the large one with this number.

    Raises:
        UnreadableError: it is damaged, or of a later version.
    """
    try:
        compressed = AESGCM(key).decrypt(number.to_bytes(_NONCE_BYTES), data[1:], data[:1])
        if data[:1] != _FORMAT:
            raise codec.UnreadableError("A packed response has the form of a later version of this software.")
        body = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=_MAX_BYTES)
    except (InvalidTag, ValueError, zstandard.ZstdError) as error:
        raise codec.UnreadableError("What is packed of a response or a conversation is damaged.") from error
    rows, at = list[tuple[str, bytes]](), 0
    while at < len(body):
        name_bytes, value_bytes = _ROW.unpack_from(body, at)
        start = at + _ROW.size + name_bytes
        name, at = body[at + _ROW.size : start].decode("ascii"), start + value_bytes
        value = body[start:at]
        rows.append((name, codec.repacked(value) if name.startswith(_ENCODED) else value))
    return rows
