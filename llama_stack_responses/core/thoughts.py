"""What a reasoning item holds for the model: its text, and the provider's signatures on it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import orjson

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning.

    Attributes:
        signature: by which the provider knows it again, if it signs.
        call_id: the call that the signature is on, if it is not on the text.
    """

    text: str
    signature: str | None = None
    call_id: str | None = None


def plain_thoughts(item: Json) -> list[Thought]:
    """The reasoning that an item shows, or its summary where that is all there is."""
    parts = item.get("content") or item.get("summary") or ()
    return [Thought("\n".join(part["text"] for part in parts))]


def encoded(thoughts: Sequence[Thought]) -> bytes:
    """The thoughts, to be sealed."""
    return zlib.compress(orjson.dumps([astuple(thought) for thought in thoughts]), 1)


def decoded(data: bytes) -> list[Thought]:
    """The inverse of `encoded`."""
    return [Thought(*fields) for fields in orjson.loads(zlib.decompress(data))]
