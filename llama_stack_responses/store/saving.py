"""Plan what one save writes, given the stored records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..concurrency.offloading import INLINE_BYTES, Computation
from ..core.errors import ApiError
from ..core.exchanges import with_exchanges
from ..core.ids import seeded, tag_of
from ..core.json_blocks import dumps
from ..core.json_values import is_large
from ..core.owner import Owner
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..stream.transcript import Mark
from . import codec, history_nodes, item_ids
from .content_names import Hasher
from .conversation_store import ConversationAppend, begins_with_stand_in
from .decoder import Decoder
from .ends import Ended
from .layout import (
    Entry,
    bucket,
    chat_request,
    further_pointer,
    order_of,
    pointers,
    reference,
    second,
    split_name,
    tag_of_history,
    unsettled,
    used,
)
from .list_rows import answered, first_words, list_row
from .records import Condition, Conflict, Delete, Ensure, Op, Put, Record, Records, VersionIs

_FIELDS: Final = ("tools", "instructions", "text")
_BIG_BYTES: Final = 256
_SHORT_BYTES: Final = 2048
_RECENT_ITEMS: Final = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """One commit.

    Attributes:
        ops, conditions: the commit.
        released: the keys of content that loses a reference by the commit.
        version: the response's version after the commit.
        ended: the end of the response, if it ends with the commit: it has ended, and what was stored before has not.
    """

    ops: list[Op]
    conditions: list[Condition]
    released: list[str]
    version: int
    ended: Ended | None


@dataclass(frozen=True, slots=True)
class Recording:
    """The record of how a response was generated.

    Attributes:
        timing: when its rounds, tool calls and events came; None if this was not recorded.
        requests: its chat requests, encoded; empty if these are not recorded.
        stored: how many chat requests before these are stored already.
        error: why it failed, for `Ended`.
    """

    timing: Json | None = None
    requests: Sequence[bytes] = ()
    stored: int = 0
    error: ApiError | None = None

    @property
    def recorded(self) -> int:
        """The number of all its chat requests."""
        return self.stored + len(self.requests)


class Saving:
    """One call of `Archive.save`, which documents the arguments.

    Args:
        append: what the response adds to its conversation.
        computation: works on the values of the call.

    Attributes:
        computation: works on what the save writes.
    """

    def __init__(
        self,
        response: Json,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        base_items: Sequence[Json],
        transcript: Sequence[Mark] | None,
        exchanges: Mapping[str, Json],
        append: ConversationAppend | None,
        recording: Recording,
        computation: Computation,
    ) -> None:
        self.computation = computation
        self._response = response
        self._recording = recording
        self._own_items = [*base_items, *input_items] if base is None else input_items
        self._words, self._answers = first_words(self._own_items), answered(self._own_items)
        self._joining = append
        self._transcript = transcript
        self._output = with_exchanges(response["output"], exchanges)
        self._owner = owner
        tag = tag_of(response["id"])
        self._hasher = Hasher(owner, tag)
        self._key = f"r/{response['id']}"
        self._bucket = bucket(self._hasher.owner, second(response["created_at"]), tag)
        fields = {name: dumps(response[name]) for name in _FIELDS if response.get(name)}
        self._field_names = {
            name: self._hasher.content(value) for name, value in fields.items() if len(value) > _BIG_BYTES
        }
        self._base_items = base_items
        if base and tag_of_history(base) != tag:
            # Its content is in another partition, and is stored again in this one.
            base, input_items = None, [*base_items, *input_items]
        self._set_base(base, input_items)

    def _set_base(self, base: str | None, items: Sequence[Json]) -> None:
        name = split_name(base) if base else None
        self._base = name.node if name else None
        self._base_ids = name.ids if name else None
        self._items = items
        self._inputs = self._hasher.histories(self._base, items)
        self._input = self._inputs[-1] if self._inputs else self._base
        self._outputs = self._hasher.histories(self._input, self._output)
        self._history = self._outputs[-1] if self._outputs else self._input
        self._own_ids: Sequence[Json] = ()
        self._ids = self._base_ids
        self._sent: set[str] = set()

    async def read(self, records: Records, decoder: Decoder, compared_bytes: int) -> dict[str, Record]:
        """Read the stored records that the save needs.

        This takes one round trip for the history, rarely two. Content of the request that is already stored takes one
        more, and a few if other ids are stored with it.
        """
        names = [self._base, self._base_ids, self._history, *self._inputs[-_RECENT_ITEMS:]]
        keys = [self._key, *(f"n/{name}" for name in dict.fromkeys(names) if name)]
        keys += [self._bucket, *(f"b/{name}" for name in self._field_names.values())]
        keys += self._pointers(self._items[-_RECENT_ITEMS:])
        known = await (self._joining.read(records, *keys) if self._joining else records.get_many(keys))
        if any(name and f"n/{name}" not in known for name in (self._base, self._base_ids)):
            self._set_base(None, [*self._base_items, *self._items])
            self.computation = Computation(self._items, self._response, self._output)
            return await self.read(records, decoder, compared_bytes)
        earlier = self._inputs[:-_RECENT_ITEMS]
        if earlier and not any(f"n/{name}" in known for name in self._inputs[-_RECENT_ITEMS:]):
            known |= await records.get_many(await self.computation.run(partial(self._earlier_keys, earlier)))
        return known | await self._read_ids(records, decoder, known, frozenset(keys), compared_bytes)

    async def _read_ids(
        self, records: Records, decoder: Decoder, known: Mapping[str, Record], read: Set[str], compared_bytes: int
    ) -> dict[str, Record]:
        """Find out which items are stored with other ids; return the node with theirs if it is stored."""
        self._own_ids, self._ids = (), self._base_ids
        names, items = [*self._inputs, *self._outputs], [*self._items, *self._output]
        computation = self.computation
        shared = await computation.run(partial(self._shared, names, known))
        names, items = names[:shared], items[:shared]
        # A response that is not stored has generated the ids of its output itself.
        new = shared if self._key in known else len(self._inputs)
        others = await item_ids.indices_with_other_ids(
            records, self._hasher, names, items, computation, known=known, read=read, new=new
        )
        if not others:
            return {}
        self._own_ids = await item_ids.node_items(
            records,
            decoder,
            names,
            items,
            others,
            computation,
            is_whole=self._base is None,
            generated=len(self._inputs),
            compared_bytes=compared_bytes,
            known=known,
        )
        if not self._own_ids:
            return {}
        return await records.get_many(await computation.run(self._keys_of_ids))

    def _keys_of_ids(self) -> list[str]:
        """Return the keys of the node that has the items' own ids, and of the pointers to it."""
        self._ids = self._hasher.own_ids(self._base_ids, self._own_ids)
        return [f"n/{self._ids}", *self._pointers(self._own_ids)]

    def _earlier_keys(self, names: Sequence[str]) -> list[str]:
        """Return the keys of all but the recent input items: of the nodes of these names, and of the pointers."""
        return [*(f"n/{name}" for name in names), *self._pointers(self._items[:-_RECENT_ITEMS])]

    def _shared(self, names: Sequence[str], known: Mapping[str, Record]) -> int:
        """Return how many items the longest history has that the save takes as it is stored."""
        return max((index + 1 for index, name in enumerate(names) if self._is_end(index, name, known)), default=0)

    def _pointers(self, items: Sequence[Json]) -> list[str]:
        """Return the keys of the pointers to these items, which lead to another node if the client sent them again."""
        rows = {f"i/{self._hasher.item(item['id'])}": item["id"] for item in items if item.get("id")}
        self._sent |= {row for row, item_id in rows.items() if not seeded(item_id)}
        return list(rows)

    def _is_end(self, index: int, name: str, known: Mapping[str, Record]) -> bool:
        """Return whether the save takes the stored node that ends with this item; else it writes the item anew."""
        return f"n/{name}" in known and (index < len(self._inputs) or name == self._history)

    def plan(self, known: dict[str, Record], now: float, version: int | None) -> Plan:
        """Return the commit that stores the response, given what `read` found.

        Raises:
            Conflict: the stored response does not have `version`.
        """
        stored = known.get(self._key)
        unchanged = VersionIs(self._key, stored.version if stored else None)
        if version is not None and unchanged.version != version:
            raise Conflict([VersionIs(self._key, version)])
        old = Entry.decode(stored) if stored else None
        content = _Content(self._hasher, known, self._sent, small=not self.computation.is_large)
        self._keep_fields(content)
        self._keep_history(content)
        self._keep_ids(content)
        self._keep_bucket(content)
        once = None if old and old.joined else self._joining
        joins, as_it_is = once.plan(known) if once else ([], [])
        new = self._entry(
            known, old, order_of(self._response["created_at"], now), joined=bool(joins or (old and old.joined))
        )
        released = self._released(old, new, content) if old else {}
        ops = [
            *(() if old else used(self._owner, tag_of(new.id))),
            *content.ops,
            Put(self._key, new.encode(small=not self.computation.is_large)),
            *_changes(old, new),
            *self._list_ops(old, new),
        ]
        ops += [unsettled(key, self._owner) for key in released.values()]
        ops += joins
        conditions = [unchanged, *content.conditions, *as_it_is]
        return Plan(ops, conditions, list(released.values()), (unchanged.version or 0) + 1, self._ended(old, now))

    def _ended(self, old: Entry | None, at: float) -> Ended | None:
        """Return the end of the response; None if it has not ended, or had ended before."""
        if self._response["status"] in UNFINISHED or (old and old.response["status"] not in UNFINISHED):
            return None
        # The input of a response that was stored before is in its history, and not among the items of this save.
        own_items = None if old else self._own_items
        recording = self._recording
        return Ended(self._response, self._owner, recording.timing, at, own_items, recording.error)

    def _released(self, old: Entry, new: Entry, content: _Content) -> dict[str, str]:
        """Return the keys of the references that the response no longer holds, each with the key of the content.

        The parent of its new history is left out: it is still referenced. It is usually the response's input.
        """
        released = {key: name for key, name in old.references().items() if key not in new.references()}
        parents = [content.parent(name) for name in (new.history, new.ids) if released and name]
        return {key: name for key, name in released.items() if name.removeprefix("n/") not in parents}

    def _keep_bucket(self, content: _Content) -> None:
        # Commits that write one key wait for each other, so only the owner's first saves of a bucket write it.
        if found := content.known.get(self._bucket):
            content.conditions.append(VersionIs(self._bucket, found.version))
        else:
            content.ops.append(Ensure(self._bucket, b""))

    def _keep_fields(self, content: _Content) -> None:
        for field, name in self._field_names.items():
            content.ensure(
                f"b/{name}", partial(codec.encode, self._response[field], small=not self.computation.is_large)
            )

    def _keep_ids(self, content: _Content) -> None:
        if self._base_ids:
            content.ensure_node(self._base_ids)
        if self._ids and self._own_ids:
            content.ensure_node(self._ids, self._base_ids, self._own_ids)

    def _keep_history(self, content: _Content) -> None:
        if self._history is None:
            return
        if content.has(self._history):
            content.ensure_node(self._history)
            return
        stem, rest = self._stem(content)
        if stem is not None:
            content.ensure_node(stem)
        if self._output and self._is_one_piece(rest):
            content.ensure_node(self._history, stem, [*rest, *self._output])
            return
        if rest and self._input is not None:
            content.ensure_node(self._input, stem, rest)
        if self._output:
            content.ensure_node(self._history, self._input, self._output)

    def _stem(self, content: _Content) -> tuple[str | None, Sequence[Json]]:
        """Return the longest stored prefix of the history, and the input items after it."""
        for index in range(len(self._inputs), 0, -1):
            if content.has(self._inputs[index - 1]):
                return self._inputs[index - 1], self._items[index:]
        return self._base, self._items

    def _is_one_piece(self, rest: Sequence[Json]) -> bool:
        """Return whether input and output share a node, which saves a sixth of a chain's bytes.

        They do not if the client sends the whole history itself: the client's copy of the output may differ, so its
        next history may share only the part up to the end of the input. Nor do they if the input is long, so that
        another response to the same input finds it stored.
        """
        continues = self._base is not None or begins_with_stand_in(self._items)
        return continues and not is_large(rest, INLINE_BYTES) and len(dumps(list(rest))) <= _SHORT_BYTES

    def _list_ops(self, old: Entry | None, new: Entry) -> list[Op]:
        """Return the ops that write the row in the owner's list, and the recorded chat requests."""
        recorded = enumerate(self._recording.requests, self._recording.stored)
        requests: list[Op] = [Put(chat_request(new.id, number), request) for number, request in recorded]
        words = self._words or (old.words if old else None) or ""
        answers = self._answers or (old.answers if old else None) or ()
        return [Put(new.listed, list_row(self._response, words, new.timing, answers)), *requests]

    def _entry(self, known: Mapping[str, Record], old: Entry | None, order: str, *, joined: bool) -> Entry:
        unfinished = self._response["status"] in UNFINISHED
        found = known.get(f"n/{self._history}") if self._output else None
        own = found is not None and list(history_nodes.decode(found.value).items[-len(self._output) :]) != self._output
        response = {**self._response, **dict.fromkeys(self._field_names), "output": self._output if own else []}
        return Entry(
            response=response,
            owner=self._owner,
            history=self._history,
            outputs=len(self._output),
            fields=self._field_names,
            order=old.order if old else order,
            transcript=self._transcript,
            joined=joined,
            words=self._words if unfinished else None,
            answers=self._answers if unfinished else None,
            timing=self._recording.timing or (old.timing if old else None),
            recorded=self._recording.recorded or (old.recorded if old else 0),
            ids=self._ids,
        )


class _Content:
    """Immutable content that must exist after a commit: collects the ops that write it, and the conditions.

    Args:
        known: the stored records, with the pointers from the ids of a request's items.
        sent: the keys of the pointers from ids that a client may have sent.
        small: whether the content is known to be small.
    """

    def __init__(self, hasher: Hasher, known: Mapping[str, Record], sent: Set[str], *, small: bool) -> None:
        self._hasher = hasher
        self.known = known
        self._sent, self._small = sent, small
        self._kept: dict[str, bytes] = {}
        self.ops: list[Op] = []
        self.conditions: list[Condition] = []

    def has(self, name: str) -> bool:
        """Return whether the node already exists."""
        return f"n/{name}" in self.known

    def parent(self, name: str) -> str | None:
        """Return the name of the parent of the kept node `name`."""
        return history_nodes.decode(self._kept[f"n/{name}"]).parent

    def ensure(self, key: str, make: Callable[[], bytes]) -> bool:
        """Make sure that `key` exists after the commit, without a concurrent change; return if the commit writes it."""
        if key in self._kept:
            return False
        record = self.known.get(key)
        self.conditions.append(VersionIs(key, record.version if record else None))
        self._kept[key] = record.value if record else make()
        if record is None:
            self.ops.append(Put(key, self._kept[key]))
        return record is None

    def ensure_node(self, name: str, parent: str | None = None, items: Sequence[Json] = ()) -> None:
        """Make sure that the node `name` exists after the commit; a new one gets `items` and `parent`."""
        on = self._kept[f"n/{parent}"] if parent else None
        if self.ensure(f"n/{name}", lambda: history_nodes.extend(parent, on, items).encode(small=self._small)):
            if parent:
                self.ops.append(Put(reference(parent, name), b""))
            self._point(name, items)

    def _point(self, name: str, items: Sequence[Json]) -> None:
        """Write pointers to the items of a new node, also where their ids lead to another node."""
        for row, pointer in pointers(self._hasher, f"n/{name}", items).items():
            if row in self.known:
                self.ops.append(Put(further_pointer(row, name), pointer.value))
                continue
            self.ops.append(pointer)
            if row in self._sent:
                # Another response with this id may be stored at the same time.
                self.conditions.append(VersionIs(row, None))


def _changes(old: Entry | None, new: Entry) -> list[Op]:
    """Return the ops that change the rows other than the record from `old` to `new`."""
    rows, gone = new.rows(), old.rows() if old else {}
    return [*(Delete(key) for key in gone if key not in rows), *(row for key, row in rows.items() if key not in gone)]
