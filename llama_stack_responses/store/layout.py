"""The keys under which an archive keeps what it keeps, and a response's own record.

`of` is a hash of the owner; a name is a hash of the owner and the content.

    r/<response>                 a response (`Entry`)
    n/<name>                     a node of a history (`nodes.py`)
    b/<name>                     a big field that many responses share
    f/<name>/<source>            a reference to that node or big field: its source is a child node or a response
    i/<hash of owner, item id>   a pointer to the item: the key of what has it, and its index there
    l/<of>/<order>/<response>    the owner's responses in the order of their creation
    x/<bucket>/<of>              the owner has responses whose order begins with the bucket
    g/<key>                      this content lost a reference and is to be looked at; the value is whose it is
    c/<conversation>             a conversation (`conversations.py`)
    m/<conversation>/<place>     an item of it
    a/<conversation>/<item>      the place of the item with this id, a hash like that of a pointer
    w/<conversation>             its items are to be dropped, since it is deleted; the value is whose it was
    z/<response or conversation> an import brought it; the row stays when it is deleted, so that it never comes back
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..core.owner import Owner
from ..core.stream.transcript import Mark
from . import codec
from .hashing import Hasher
from .records import Ensure, Op, Put, Record

type Json = dict[str, Any]

BUCKET: Final = 4
"""Digits of an order that are its bucket: 65,536 seconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A response's record.

    Attributes:
        response: the response object, less what is kept elsewhere.
        owner: who made it.
        history: the name of the history after its output; None if that is empty.
        outputs: how many items at the end of `history` are the output. They are the same but for details, such as ids,
            if another response had the same history; then `response` has its own output itself.
        fields: the names of the big fields.
        order: where the response stands among its owner's.
        transcript: how the response's stream was cut into events.
        joined: whether what it adds to its conversation is there, or was.
    """

    response: Json
    owner: Owner
    history: str | None
    outputs: int
    fields: Mapping[str, str]
    order: str
    transcript: Sequence[Mark] | None = None
    joined: bool = False

    def encode(self) -> bytes:
        """The record's value."""
        return codec.encode(
            {
                "response": self.response,
                "owner": self.owner.encode(),
                "history": self.history,
                "outputs": self.outputs,
                "fields": self.fields,
                "order": self.order,
                "transcript": self.transcript,
                "joined": self.joined,
            }
        )

    @staticmethod
    def decode(record: Record) -> Entry:
        """The entry that `encode` wrote."""
        stored = codec.decode(record.value)
        return Entry(**codec.known(Entry, {**stored, "owner": Owner(*stored["owner"])}))

    @property
    def id(self) -> str:
        """The response's id."""
        response_id: str = self.response["id"]
        return response_id

    @property
    def input(self) -> str | None:
        """The name of the history after the response's input."""
        return f"{self.history}.{self.outputs}" if self.outputs else self.history

    def references(self) -> dict[str, str]:
        """The keys of the references that the response holds, each with the key of the content."""
        held = {reference(self.history, self.id): f"n/{self.history}"} if self.history else {}
        return held | {reference(name, self.id): f"b/{name}" for name in self.fields.values()}

    def rows(self) -> dict[str, Op]:
        """What the response has beside its record: how to write it, by key."""
        hasher = Hasher(self.owner)
        rows: dict[str, Op] = {key: Put(key, b"") for key in self.references()}
        listed = listing(hasher.owner, self.order, self.id)
        rows[listed] = Put(listed, b"")
        return rows | pointers(hasher, f"r/{self.id}", self.response["output"])


def imported(of: str) -> Put:
    """The row that says that an import brought the response or conversation with this id."""
    return Put(f"z/{of}", b"")


def reference(name: str, source: str) -> str:
    """The key that says that `source` needs the content called `name`; 16 characters tell its sources apart."""
    return f"f/{name}/{source[-16:]}"


def split_input(name: str) -> tuple[str, int]:
    """The node that a history's name leads to, and how many of its last items do not belong to the history."""
    node, _, outputs = name.partition(".")
    return node, int(outputs or 0)


def listing(of: str, order: str, response_id: str) -> str:
    """The key of a response among its owner's."""
    return f"l/{of}/{order}/{response_id}"


def bucket(of: str, order: str) -> str:
    """The key that says that the owner has responses of this time."""
    return f"x/{order[:BUCKET]}/{of}"


def unsettled(key: str, owner: Owner) -> Put:
    """Has the content of `owner` under `key` looked at, whatever happens after the commit."""
    return Put(f"g/{key}", codec.encode(Owner(owner.principal, tenant=owner.tenant).encode()))


def order_of(created_at: float, now: float) -> str:
    """Where a response stands: the second of its creation, then the milliseconds until it was first stored."""
    after = min(max(int((now - int(created_at)) * 1000), 0), 0xFFFFFF)
    return f"{second(created_at)}{after:06x}"


def second(moment: float) -> str:
    """A second since the epoch, as an order begins with it."""
    return f"{max(int(moment), 0):08x}"


def pointers(hasher: Hasher, key: str, items: Sequence[Json]) -> dict[str, Op]:
    """What leads from the ids of `items` to `key`, where they lie; an id that leads elsewhere already is left alone."""
    found: dict[str, Op] = {}
    for index, item in enumerate(items):
        if item_id := item.get("id"):
            row, pointer = item_pointer(hasher, item_id, key, index)
            found.setdefault(row, Ensure(row, pointer))
    return found


def item_pointer(hasher: Hasher, item_id: str, key: str, index: int) -> tuple[str, bytes]:
    """The key and the value of the pointer to an item that lies under `key`."""
    return f"i/{hasher.item(item_id)}", f"{key} {index}".encode()


def read_pointer(value: bytes) -> tuple[str, int]:
    """The key and the index that a pointer holds."""
    key, _, index = value.decode().rpartition(" ")
    return key, int(index)
