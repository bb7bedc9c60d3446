"""The keys of an archive, and the record of a response.

`<of>` is a hash of the owner; a name is a hash of the owner and the content.

    r/<response>                 a response (`Entry`)
    n/<name>                     a node of a history (`history_nodes.py`), or of ids for its items (`item_ids.py`)
    b/<name>                     a big field that many responses share
    f/<name>/<source>            a reference to that node or big field; its source is a child node or a response
    i/<hash of owner, item id>   a pointer to the item: the key of the record that holds it, and its index there; or,
                                 with a seed of ids in place of the id, to the entry of a node that gives these ids
    j/<hash as in i/>/<name>     a pointer to the same item in another node or in a conversation, for the time after the
                                 first is deleted: a client that sends an item again sends its id again, and a
                                 conversation has the items of its responses
    l/<of>/<order>/<response>    the owner's responses in the order of their creation; the value is what a list shows of
                                 one (`list_rows.py`)
    y/<of>/<previous>/<order>/<response>    the owner's responses that continue the response `previous`
    sc/<of>/<order>/<response>   score and note of the response (`scores.py`)
    sl/<response>                the links with which anyone reads the response (`features/page/shared_links/`)
    cr/<response>/<number>       a chat request that the response sent to its model server, if these are recorded
    x/<bucket>/<of>              the owner has responses whose order begins with the bucket; `.<tag>` follows
    up/<of>/<tag>                the owner has responses or conversations with the tag
    g/<key>                      this content lost a reference and may be garbage; the value is its owner
    c/<conversation>             a conversation (`conversation_store.py`)
    m/<conversation>/<position>  an item of the conversation, or a stub of packed ones (`features/cold/rows.py`)
    a/<conversation>/<item>      the position of the item with this id, which is hashed as in a pointer
    w/<conversation>             the conversation is deleted, its items are still to be deleted; the value is its owner
    sk/<of>/<skill>              a skill (`features/code/`); the ids of skills are ordered by the time of their creation
    sv/<skill>/<number>          a version of the skill
    sp/<archive>/<part>          a part of the archive of a version
    su/<archive>                 the parts of this archive are to be deleted at a time, unless a version gets it before
    ak/<key>                     a key with which a user authenticates (`access_keys.py`)
    au/<key>                     when the key was used last
    al/<moment and number>       an entry of the audit log (`audit_log.py`)
    ms/<server>                  what was learned about a model server (`learned_steps.py`)
    co/..., cl/..., cp/..., ch/..., ck/...    what is packed in an object store (`features/cold/rows.py`)
    ce/<of>                      the containers that a user has until then are to be ended: the user was deleted
    wh/...                       endpoints and deliveries of webhooks (`features/webhooks/rows.py`)
    sd/wanted                    a user has searched, so there is an index of words (`features/page/search/demand.py`)
    so/<of>                      how many skills the owner has, and their bytes; `.<tag>` follows
    z/<response or conversation> an import created it; the row outlives it, so that it is never imported again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..core.ids import tag_of
from ..core.owner import Owner
from ..core.types import Json
from ..stream.transcript import Mark
from . import codec
from .content_names import Hasher, tag_of_name
from .records import Ensure, Op, Put, Record, Records, after_prefix, pages_of

LISTS: Final = "l/"
"""The prefix of the rows of lists."""

SCORES: Final = "sc/"
"""The prefix of scores, whose keys are otherwise those of the rows of lists."""

BUCKET: Final = 4
"""Leading digits of an order that form its bucket of 65,536 seconds."""

TAGS_OF_OWNER: Final = "up/"
"""The prefix of the rows that say which tags an owner uses."""
OUTBOX: Final = "ob/"
"""The prefix of the rows that note what a commit writes in another partition (`partitions.py`)."""

SECOND_DIGITS: Final = 8
"""Leading digits of an order that are the second of the creation."""

ORDER_DIGITS: Final = 14
"""Digits of an order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of a response.

    Attributes:
        response: the response object without content that is stored elsewhere.
        owner: the owner of the response.
        history: the name of the history after its output; None if that is empty.
        outputs: the number of items at the end of `history` that are the output. If another response had the same
            history, these items may differ in details such as ids; `response` then holds its own output.
        ids: the name of the node of ids for the items of `history`; None if these are stored with their own.
        fields: the names of the big fields.
        order: the position among the owner's responses.
        transcript: how the response's stream was cut into events.
        joined: whether its items were added to its conversation.
        words: the first words of the input of a response that has not ended, for the row that its end writes.
        answers: the names of the calls that its input answers, for the same row.
        timing: when its rounds, tool calls and events came; None if this was not recorded.
        recorded: the number of its recorded chat requests.
    """

    response: Json
    owner: Owner
    history: str | None
    outputs: int
    fields: Mapping[str, str]
    order: str
    transcript: Sequence[Mark] | None = None
    joined: bool = False
    words: str | None = None
    timing: Json | None = None
    recorded: int = 0
    ids: str | None = None
    answers: Sequence[str] | None = None

    def encode(self, *, small: bool = False, pack: bool = True) -> bytes:
        """Return the record's value; `small` says that it is known to be small, `pack` whether it is compressed."""
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
                "words": self.words,
                "timing": self.timing,
                "recorded": self.recorded,
                **({"ids": self.ids} if self.ids else {}),
                **({"answers": self.answers} if self.answers else {}),
            },
            small=small,
            pack=pack,
        )

    @staticmethod
    def decode(record: Record) -> Entry:
        """Decode the result of `encode`."""
        return Entry.from_stored(codec.decode(record.value))

    @staticmethod
    def from_stored(stored: Json) -> Entry:
        """Return the entry, given the decoded value of its record."""
        return Entry(**codec.known(Entry, {**stored, "owner": Owner(*stored["owner"])}))

    @property
    def id(self) -> str:
        """The response's id."""
        response_id: str = self.response["id"]
        return response_id

    @property
    def whole(self) -> str | None:
        """The name of the history after the response's output, with its ids."""
        return named(self.history, 0, self.ids)

    @property
    def input(self) -> str | None:
        """The name of the history after the response's input, with its ids."""
        return named(self.history, self.outputs, self.ids)

    def references(self) -> dict[str, str]:
        """Return the keys of the response's references, each with the key of the content."""
        held = {reference(name, self.id): f"n/{name}" for name in (self.history, self.ids) if name}
        return held | {reference(name, self.id): f"b/{name}" for name in self.fields.values()}

    @property
    def listed(self) -> str:
        """The key of the response in its owner's list."""
        return listing(Hasher(self.owner).owner, self.order, self.id)

    def rows(self) -> dict[str, Op]:
        """Return the ops that write the response's rows except its record and its row in the list, by key."""
        hasher = Hasher(self.owner, tag_of(self.id))
        rows: dict[str, Op] = {key: Put(key, b"") for key in self.references()}
        if previous := self.response.get("previous_response_id"):
            key = f"{branches(hasher.owner, previous)}{self.order}/{self.id}"
            rows[key] = Put(key, b"")
        if self.ids:
            # They have their own pointers, which other responses may share.
            return rows
        return rows | pointers(hasher, f"r/{self.id}", self.response["output"])

    def keys(self) -> list[str]:
        """Return the keys of all rows of the response except its record."""
        requests = (chat_request(self.id, number) for number in range(self.recorded))
        return [*self.rows(), self.listed, scored(self.listed), links_of(self.id), *requests]


def imported(owner_key: str) -> Put:
    """Return the row that marks the response or conversation with this id as imported."""
    return Put(f"z/{owner_key}", b"")


def reference(name: str, source: str) -> str:
    """Return the key of the reference from `source` to the content called `name`.

    16 characters identify a source among those of one content.
    """
    return f"f/{name}/{source[-16:]}"


class HistoryName(NamedTuple):
    """The parts of a history's name.

    Attributes:
        node: the node that ends it.
        behind: the number of that node's last items that the history leaves out.
        ids: the node of ids for its items; None if they are stored with their own.
    """

    node: str
    behind: int
    ids: str | None


def named(node: str | None, behind: int, ids: str | None) -> str | None:
    """Return the name of the history with these parts; None if it is empty."""
    if node is None:
        return None
    return node + (f".{behind}" if behind else "") + (f"~{ids}" if ids else "")


def split_name(name: str) -> HistoryName:
    """Return the parts of a history's name."""
    content, _, ids = name.partition("~")
    node, _, outputs = content.partition(".")
    return HistoryName(node, int(outputs or 0), ids or None)


def tag_of_history(name: str) -> int:
    """Return the tag of a history."""
    return tag_of_name(split_name(name).node)


def listing(owner_key: str, order: str, response_id: str) -> str:
    """Return the key of a response in its owner's list."""
    return f"{LISTS}{owner_key}/{order}/{response_id}"


def scored(listed: str) -> str:
    """Return the key of the score of a response, given that of its row in its owner's list."""
    return f"{SCORES}{listed.removeprefix(LISTS)}"


def links_of(response_id: str) -> str:
    """Return the key of the links with which anyone reads a response."""
    return f"sl/{response_id}"


def branches(owner_key: str, previous: str) -> str:
    """Return the prefix of the keys of the owner's responses that continue the response `previous`."""
    return f"y/{owner_key}/{previous}/"


def chat_request(response_id: str, number: int) -> str:
    """Return the key of a recorded chat request of a response."""
    return f"cr/{response_id}/{number:04d}"


def chat_requests(response_id: str) -> tuple[str, str]:
    """Return the range of keys of all recorded chat requests of a response."""
    return f"cr/{response_id}/", after_prefix(f"cr/{response_id}/")


def bucket(owner_key: str, order: str, tag: int = 0) -> str:
    """Return the key that marks that the owner has responses of this time, and with this tag."""
    return with_tag(f"x/{order[:BUCKET]}/{owner_key}", tag)


def owner_of_bucket(row: str) -> str:
    """Return the owner of a key of `bucket`."""
    return row.split("/")[2].partition(".")[0]


def used(owner: Owner, tag: int) -> list[Ensure]:
    """Return the op that says that the owner has responses or conversations with this tag, unless it is 0."""
    return [Ensure(f"{TAGS_OF_OWNER}{Hasher(owner).owner}/{tag:03x}", b"")] if tag else []


async def tags_of(records: Records, owner: Owner) -> list[int]:
    """Return the tags of an owner's responses and conversations, except 0."""
    prefix = f"{TAGS_OF_OWNER}{Hasher(owner).owner}/"
    return [int(key[-3:], 16) async for rows in pages_of(records, prefix) for key, _ in rows]


def with_tag(key: str, tag: int) -> str:
    """Return a key that is in the partition of a tag, other than those of responses and contents."""
    return f"{key}.{tag:03x}" if tag else key


def unsettled(key: str, owner: Owner) -> Put:
    """Return the op that has the content of `owner` under `key` checked for references, even if the process dies."""
    return Put(f"g/{key}", codec.encode(Owner(owner.principal, tenant=owner.tenant).encode()))


def order_of(created_at: float, now: float) -> str:
    """Return a response's position: the second of its creation, then the milliseconds until it was first stored."""
    after = min(max(int((now - int(created_at)) * 1000), 0), 0xFFFFFF)
    return f"{second(created_at)}{after:0{ORDER_DIGITS - SECOND_DIGITS}x}"


def second(moment: float) -> str:
    """Return the moment, in seconds since the epoch, as the beginning of an order."""
    return f"{max(int(moment), 0):0{SECOND_DIGITS}x}"


def pointers(hasher: Hasher, key: str, items: Sequence[Json]) -> dict[str, Ensure]:
    """Return the ops that write pointers from the ids of `items` to the record `key`; existing pointers are kept."""
    rows: dict[str, Ensure] = {}
    for index, item in enumerate(items):
        if item_id := item.get("id"):
            row, pointer = item_pointer(hasher, item_id, key, index)
            rows.setdefault(row, Ensure(row, pointer))
    return rows


def item_pointer(hasher: Hasher, item_id: str, key: str, index: int) -> tuple[str, bytes]:
    """Return the key and the value of the pointer to an item of the record `key`."""
    return f"i/{hasher.item(item_id)}", f"{key} {index}".encode()


def further_pointer(row: str, name: str) -> str:
    """Return the key of a pointer to the record called `name`, from an id whose first pointer is `row`."""
    return f"{further_pointers(row)}{name[-16:]}"


def further_pointers(row: str) -> str:
    """Return the prefix of the keys of the pointers to other records, from an id whose first pointer is `row`."""
    return f"j/{row.removeprefix('i/')}/"


def read_pointer(value: bytes) -> tuple[str, int]:
    """Return the key and the index that a pointer holds."""
    key, _, index = value.decode().rpartition(" ")
    return key, int(index)
