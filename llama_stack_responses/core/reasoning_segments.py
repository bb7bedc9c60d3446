"""The content of a reasoning item for the model: its text, and the provider's signatures."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import orjson

from . import json_decoding
from .json_blocks import blocks
from .types import Json

_SLICE_BYTES: Final = 65_536
"""Bytes that are decoded in one call."""


@dataclass(frozen=True, slots=True)
class ReasoningSegment:
    """A part of the text of a reasoning item that has one signature, or none.

    Attributes:
        signature: the provider's signature, by which it recognizes the reasoning; None if it does not sign.
        call_id: the call that the signature covers; None if it covers the text.
    """

    text: str
    signature: str | None = None
    call_id: str | None = None


def plain_reasoning(item: Json) -> list[ReasoningSegment]:
    """Return the reasoning that an item shows, or its summary if there is no more."""
    parts = item.get("content") or item.get("summary") or ()
    return [ReasoningSegment("\n".join(part["text"] for part in parts))]


def encoded(segments: Sequence[ReasoningSegment]) -> bytes:
    """Encode the segments, to be sealed."""
    packer, packed = zlib.compressobj(1), bytearray()
    for block in blocks([astuple(segment) for segment in segments]):
        packed += packer.compress(block)
    return bytes(packed + packer.flush())


def decoded(data: bytes) -> list[ReasoningSegment]:
    """Decode what `encoded` returned."""
    return segments_of(zlib.decompress(data))


def segments_of(text: bytes | bytearray) -> list[ReasoningSegment]:
    """Return the segments that decompressed JSON holds."""
    parts = orjson.loads(text) if len(text) <= _SLICE_BYTES else json_decoding.loads(text)
    return [ReasoningSegment(*fields) for fields in parts]
