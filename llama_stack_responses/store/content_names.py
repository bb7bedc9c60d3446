"""Compute names for stored content: hashes of the content and its owner.

A history's name is a running hash over its items. It does not depend on how the history is cut into nodes, so a request
with the same items finds the stored history.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any, Final

from ..core.json_blocks import ordered_dumps
from ..core.owner import Owner
from ..items.registry import ANSWERS, REQUESTS

NAME_BYTES: Final = 16
"""Bytes of a name, which is written as 22 characters of base64."""

TAG_BYTES: Final = 2
"""Bytes of a tag before those of a name."""

_TAG_SHIFT: Final = 4
"""Bits behind a tag, so that it is the first two characters of base64."""

_TAGGED_CHARACTERS: Final = frozenset({24, 19})
"""Lengths of names with a tag: of contents, and of items."""

_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")

_NAMED_BY_ID: Final = frozenset(name for name, (_, reply) in REQUESTS.items() if reply.named_by == "id")
"""Types of items that later items reference by id. All others are referenced by `call_id`, or not at all."""


def row_key(prefix: str, name: str) -> str:
    """Return the key of the row of something that has a name of any form, such as a model: 32 digits after the prefix.

    Unlike the names of a `Hasher`, it is the same for all users.
    """
    return f"{prefix}{sha256(name.encode()).hexdigest()[:32]}"


class Hasher:
    """Computes names for the content of one user. Equal content of different users has different names.

    Args:
        owner: the user; their groups do not count.
        tag: that of the responses which have the content (`core/ids.py`). Names of content begin with it.
    """

    def __init__(self, owner: Owner, tag: int = 0) -> None:
        tenant = blake2b(owner.tenant.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self._key = blake2b(owner.principal.encode("utf-8", "surrogatepass"), digest_size=32, key=tenant).digest()
        self._tag = (tag << _TAG_SHIFT).to_bytes(TAG_BYTES) if tag else b""
        self.owner = self._name(b"owner", b"", 12)
        """16 characters that identify the user in keys."""

    def content(self, data: bytes) -> str:
        """Return the name of a value: 22 characters, 24 with a tag."""
        return self._tagged_name(b"content", data, NAME_BYTES)

    def item(self, item_id: str) -> str:
        """Return the name of an item id: 16 characters, 19 with a tag."""
        return self._tagged_name(b"item", item_id.encode("utf-8", "surrogatepass"), 12)

    def key(self, key: str) -> str:
        """Return the name of a key that a client sent: 22 characters."""
        return self._name(b"key", key.encode(), NAME_BYTES)

    def histories(self, base: str | None, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the names of the histories after each of `items` is appended in turn to `base` (None: empty)."""
        names = [base or ""]
        for item in items:
            names.append(self._tagged_name(b"history", names[-1].encode() + canonical(item), NAME_BYTES))
        return names[1:]

    def own_ids(self, base: str | None, entries: Sequence[Mapping[str, Any]]) -> str:
        """Return the name of the node that appends these entries to the ids called `base` (`own_ids.py`)."""
        return self._tagged_name(b"own ids", (base or "").encode() + ordered_dumps(entries), NAME_BYTES)

    def _name(self, kind: bytes, data: bytes, size: int) -> str:
        return name_of(blake2b(data, digest_size=size, key=self._key, person=kind).digest())

    def _tagged_name(self, kind: bytes, data: bytes, size: int) -> str:
        return name_of(self._tag + blake2b(data, digest_size=size, key=self._key, person=kind).digest())


def tag_of_name(name: str) -> int:
    """Return the tag of the name of a content or an item; 0 without one."""
    return home_of(name) if len(name) in _TAGGED_CHARACTERS else 0


def home_of(name: str) -> int:
    """Return the tag of what is kept of a user beside responses, given the user's name in keys: its first digits."""
    high, low = (max(_DIGITS.find(digit), 0) for digit in name[:2].ljust(2))
    return high * len(_DIGITS) + low


def name_of(digest: bytes) -> str:
    """Return the bytes of a name as URL-safe base64 without padding."""
    # `urlsafe_b64encode` of the standard library would be two more calls in Python.
    return b2a_base64(digest, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()


def canonical(item: Mapping[str, Any]) -> bytes:
    """Return an item's identity, which stays the same if the client sends the item back with fewer fields.

    It ignores the id, the status, null fields, and the annotations and logprobs of output text. A message's content may
    be a string or a list with only that text. Encrypted reasoning counts, also beside its text: it has what the model
    server gets back unchanged, such as signatures.

    An incomplete call differs from the whole one, since it cannot be run, and a failed item differs from a successful
    one. The id counts where a later item refers to it: an approval names its request by the id.
    """
    named = _without(item, "status") if item.get("type") in _NAMED_BY_ID else _without(item, "id", "status")
    status = item.get("status")
    if status == "failed" or (status == "incomplete" and item.get("type") in ANSWERS):
        named["status"] = status
    named.setdefault("type", "message")
    kind = "output_text" if named.get("role") == "assistant" else "input_text"
    if named["type"] == "message" and isinstance(named.get("content"), str):
        named["content"] = [{"type": kind, "text": named["content"]}]
    for name in ("content", "summary"):
        if isinstance(parts := named.get(name), list):
            named[name] = [_without(part, "annotations", "logprobs") for part in parts]
    return ordered_dumps(named)


def _without(value: Any, *names: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: field for name, field in value.items() if field is not None and name not in names}
