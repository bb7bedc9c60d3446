"""The content of a reasoning item for the model: its text, and the provider's signatures."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import orjson

from .types import Json

_LARGE_BYTES: Final = 1_000_000
"""Larger thoughts are not compressed: they are sealed in the event loop, between two events of a stream."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning.

    Attributes:
        signature: the provider's signature, by which it recognizes the reasoning; None if it does not sign.
        call_id: the call that the signature covers; None if it covers the text.
    """

    text: str
    signature: str | None = None
    call_id: str | None = None


def plain_thoughts(item: Json) -> list[Thought]:
    """Return the reasoning that an item shows, or its summary if there is no more."""
    parts = item.get("content") or item.get("summary") or ()
    return [Thought("\n".join(part["text"] for part in parts))]


def encoded(thoughts: Sequence[Thought]) -> bytes:
    """Encode the thoughts, to be sealed."""
    data = orjson.dumps([astuple(thought) for thought in thoughts])
    return zlib.compress(data, 1 if len(data) < _LARGE_BYTES else 0)


def decoded(data: bytes) -> list[Thought]:
    """Decode what `encoded` returned."""
    return thoughts_of(zlib.decompress(data))


def thoughts_of(text: bytes) -> list[Thought]:
    """Return the thoughts that decompressed JSON holds."""
    return [Thought(*fields) for fields in orjson.loads(text)]
