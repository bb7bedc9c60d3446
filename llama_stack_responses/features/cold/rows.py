"""The rows of what is packed; `prefixes.py` has their keys.

Of the rows of a chain, these stay as stubs, which name it: the records of its responses, and the pointers to its items.
Of items of a conversation, the rows of the first and the last one stay as stubs: the rows between them are not in the
store, so a range that has some of them has one of these two, if it begins or ends with the conversation.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from ...core.owner import Owner
from ...core.types import Json
from ...store import codec
from ...store.layout import unsettled, with_tag
from ...store.records import Delete, Op, Put, Record
from .prefixes import CHAINS, HELD, ITEMS, OPEN, PAGES, RELEASES

_STUB: Final = b"\x0f"
"""The first byte of a stub in place of a record; as a format of `codec`, no version knows it."""
_POINTED: Final = CHAINS.encode()
_RECORD: Final = "r/"
_POINTERS: Final = ("i/", "j/")


@dataclass(frozen=True, slots=True)
class Chain:
    """Responses that are packed together, with the histories that they need; or items of a conversation.

    Attributes:
        owner: the owner of all of them.
        at: where it begins in the object, in bytes.
        size: its bytes there.
        key: the key that it is encrypted with.
        left: the number of its responses that are not deleted; 1 of items, which come back before one is deleted.
        rows: the keys of rows that stay in the store until the chain is deleted, beside the records.
        gone: the ids of its responses that were deleted.
        parts: its large rows, which follow it in the object, each by itself: their keys, and their bytes there.
    """

    owner: Owner
    at: int
    size: int
    key: bytes
    left: int
    rows: Sequence[str]
    gone: Sequence[str] = ()
    parts: Sequence[tuple[str, int]] = ()

    @property
    def total(self) -> int:
        """Its bytes in the object, with its large rows."""
        return self.size + sum(size for _, size in self.parts)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Where in the object each of its large rows begins, and its bytes."""
        ends = accumulate((size for _, size in self.parts), initial=self.at + self.size)
        return [(at, size) for at, (_, size) in zip(ends, self.parts, strict=False)]

    def encode(self) -> bytes:
        """Return the row's value."""
        fields: Json = {"owner": self.owner.encode(), "at": self.at, "size": self.size}
        fields |= {"key": b64encode(self.key).decode(), "left": self.left, "rows": list(self.rows)}
        fields |= {"gone": list(self.gone)} if self.gone else {}
        return codec.encode(fields | ({"parts": list(self.parts)} if self.parts else {}))

    @staticmethod
    def decode(record: Record) -> Chain:
        """Decode the result of `encode`."""
        stored = codec.known(Chain, codec.decode(record.value))
        parts = [(key, size) for key, size in stored.get("parts", ())]
        return Chain(**{**stored, "owner": Owner(*stored["owner"]), "key": b64decode(stored["key"]), "parts": parts})


@dataclass(frozen=True, slots=True)
class Release:
    """References to content in the store that packed responses no longer need.

    They are deleted a while after the responses were packed: what has just read a response goes on to read its content.

    Attributes:
        owner: the user.
        at: when they are deleted, in seconds since the epoch.
        held: the keys of the references, each with the key of the content.
        rows: the keys of the chain's rows that are moved into pages then, except its own.
    """

    owner: Owner
    at: float
    held: Mapping[str, str]
    rows: Sequence[str] = ()

    def encode(self) -> bytes:
        """Return the row's value."""
        owner = [self.owner.principal, {}, self.owner.tenant]
        return codec.encode({"owner": owner, "at": self.at, "held": dict(self.held), "rows": [*self.rows]})

    @property
    def contents(self) -> list[str]:
        """The keys of the content, each once: that of newer responses first."""
        return list(dict.fromkeys(reversed(list(self.held.values()))))

    def ops(self) -> list[Op]:
        """Return the ops that delete the references, and have the content checked for others."""
        return [*map(Delete, self.held), *(unsettled(content, self.owner) for content in self.contents)]

    @staticmethod
    def decode(record: Record) -> Release:
        """Decode the result of `encode`."""
        stored = codec.known(Release, codec.decode(record.value))
        return Release(**{**stored, "owner": Owner(*stored["owner"])})


class Place(NamedTuple):
    """Where a chain is: its object, its number in that, and the tag of its responses."""

    object: str
    number: int
    tag: int = 0

    @property
    def key(self) -> str:
        """The key of the chain's row."""
        return with_tag(f"{CHAINS}{self.object}/{self.number}", self.tag)

    @property
    def release(self) -> str:
        """The key of the row with the chain's references that are still to be deleted."""
        return with_tag(f"{RELEASES}{self.object}/{self.number}", self.tag)

    @staticmethod
    def of(key: str) -> Place:
        """Return the place that the key of a chain's row names."""
        _, name, last = key.split("/")
        number, _, tag = last.partition(".")
        return Place(name, int(number), int(tag or "0", 16))


class RecordStub(NamedTuple):
    """What stays of a response's record.

    Attributes:
        place: where the chain is.
        order: the response's position in its owner's list.
    """

    place: Place
    order: str

    def put(self, response_id: str) -> Put:
        """Return the op that writes it."""
        return Put(f"{_RECORD}{response_id}", _STUB + f"{self.place.key} {self.order}".encode())

    @staticmethod
    def read(record: Record) -> RecordStub | None:
        """Return the stub; None if the record is not one."""
        if not record.value.startswith(_STUB):
            return None
        key, _, order = record.value[1:].decode().partition(" ")
        return RecordStub(Place.of(key), order)


def pointer_stub(key: str, place: Place) -> Put:
    """Return the op that writes what stays of an item of a conversation, or of a pointer: it leads to the chain."""
    return Put(key, _STUB + place.key.encode() if key.startswith(ITEMS) else f"{place.key} 0".encode())


def place_of(key: str, record: Record) -> Place | None:
    """Return where the chain is that a row stands for; None if it is not a stub."""
    if key.startswith(_RECORD):
        stub = RecordStub.read(record)
        return stub.place if stub else None
    if key.startswith(ITEMS) and record.value.startswith(_STUB):
        return Place.of(record.value[1:].decode())
    if key.startswith(_POINTERS) and record.value.startswith(_POINTED):
        return Place.of(record.value.decode().partition(" ")[0])
    return None


def packing(name: str, tag: int) -> str:
    """Return the key of the row while chains with this tag may be added to an object."""
    return with_tag(f"{OPEN}{name}", tag)


def held(object_id: str) -> str:
    """Return the key of the row of a response that was brought back, or of a conversation of which items were."""
    return f"{HELD}{object_id}"


def items_of(conversation_id: str) -> str:
    """Return the prefix of the items of a conversation."""
    return f"{ITEMS}{conversation_id}/"


def own_rows(key: str) -> bool:
    """Return whether a row is one of these, which a backup replaces by what is packed."""
    return key.startswith((CHAINS, RELEASES, OPEN, HELD, PAGES))
