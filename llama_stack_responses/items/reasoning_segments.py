"""The content of a reasoning item for the model: its text, and the provider's signatures."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import orjson

from ..core import json_decoding
from ..core.json_blocks import blocks
from ..core.types import Json

_SLICE_BYTES: Final = 65_536
"""Bytes that are decoded in one call."""


_FIELDS: Final = 5
"""Fields of a segment. Later versions may append others."""
_FIRST_FIELDS: Final = 3
"""Fields that each segment is encoded with; the others are left out if they are None."""


@dataclass(frozen=True, slots=True)
class ReasoningSegment:
    """A part of the text of a reasoning item that has one signature, or one entry of a list, or neither.

    Attributes:
        signature: the provider's signature, by which it recognizes the reasoning; None if it does not sign.
        call_id: the call that the signature or the entry belongs to; None if it belongs to the text.
        source: the members of the model server's message in which the text came, separated by spaces, as
            `stream/deltas.py` names them; None for `reasoning_content`, or if it is not known.
        entry: JSON of `[place, value]`: what came with the text and has to go back as it was, without the text.
    """

    text: str
    signature: str | None = None
    call_id: str | None = None
    source: str | None = None
    entry: str | None = None


def plain_reasoning(item: Json) -> list[ReasoningSegment]:
    """Return the reasoning that an item shows, or its summary if there is no more."""
    parts = item.get("content") or item.get("summary") or ()
    return [ReasoningSegment("\n".join(part["text"] for part in parts))]


def encoded(segments: Sequence[ReasoningSegment]) -> bytes:
    """Encode the segments, to be sealed."""
    packer, packed = zlib.compressobj(1), bytearray()
    for block in blocks([_fields(segment) for segment in segments]):
        packed += packer.compress(block)
    return bytes(packed + packer.flush())


def _fields(segment: ReasoningSegment) -> tuple[str | None, ...]:
    fields = astuple(segment)
    return fields[:_FIRST_FIELDS] if segment.source is None and segment.entry is None else fields


def decoded(data: bytes) -> list[ReasoningSegment]:
    """Decode what `encoded` returned."""
    return segments_of(zlib.decompress(data))


def segments_of(text: bytes | bytearray) -> list[ReasoningSegment]:
    """Return the segments that decompressed JSON holds."""
    parts = orjson.loads(text) if len(text) <= _SLICE_BYTES else json_decoding.loads(text)
    return [ReasoningSegment(*fields[:_FIELDS]) for fields in parts]
