"""Names for stored content: hashes of what it is and whose it is.

A history's name is a running hash over its items, one after the other, so it does not depend on how the history is cut
into nodes: whoever comes along with the same items finds it.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

from ..core.owner import Owner
from ..core.schema.items import ANSWERS
from . import codec

NAME_BYTES: Final = 16
"""Bytes of a name, which is written as 22 characters of base64."""

_NAMED_BY_ID: Final = frozenset({"mcp_approval_request"})
"""Types of items that later items name by their id. All others are named by their `call_id`, or by nothing."""


class Hasher:
    """Names for what one user stores. The same content has other names under another user.

    Args:
        owner: the user; their groups do not count.
    """

    def __init__(self, owner: Owner) -> None:
        tenant = blake2b(owner.tenant.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self._key = blake2b(owner.principal.encode("utf-8", "surrogatepass"), digest_size=32, key=tenant).digest()
        self.owner = self._name(b"owner", b"", 12)
        """16 characters that stand for the user in keys."""

    def content(self, data: bytes) -> str:
        """The name of a value: 22 characters."""
        return self._name(b"content", data, NAME_BYTES)

    def item(self, item_id: str) -> str:
        """The name of an item id: 16 characters."""
        return self._name(b"item", item_id.encode("utf-8", "surrogatepass"), 12)

    def key(self, key: str) -> str:
        """The name of a key that a client sent: 22 characters."""
        return self._name(b"key", key.encode(), NAME_BYTES)

    def histories(self, base: str | None, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """The names of the histories that `base` (None: nothing) becomes with each further one of `items`."""
        names = [base or ""]
        for item in items:
            names.append(self._name(b"history", names[-1].encode() + canonical(item), NAME_BYTES))
        return names[1:]

    def _name(self, kind: bytes, data: bytes, size: int) -> str:
        digest = blake2b(data, digest_size=size, key=self._key, person=kind).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


def canonical(item: Mapping[str, Any]) -> bytes:
    """What makes an item the same item, although a client sends it back in fewer words than it got it.

    Its id, its status, fields that are null, and an output text's annotations and logprobs do not count, nor does the
    seal on reasoning that is there in the clear; a message's content may be a string or a list with that text alone.
    Only a call that was cut off is another than the whole one, since nobody can run it, and what failed is another
    than what worked. The id counts where a later item refers to it: an approval names its request by the id.
    """
    kept = _without(item, "status") if item.get("type") in _NAMED_BY_ID else _without(item, "id", "status")
    status = item.get("status")
    if status == "failed" or (status == "incomplete" and item.get("type") in ANSWERS):
        kept["status"] = status
    if kept.get("content"):
        kept.pop("encrypted_content", None)
    kept.setdefault("type", "message")
    kind = "output_text" if kept.get("role") == "assistant" else "input_text"
    if kept["type"] == "message" and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": kind, "text": kept["content"]}]
    for name in ("content", "summary"):
        if isinstance(parts := kept.get(name), list):
            kept[name] = [_without(part, "annotations", "logprobs") for part in parts]
    return codec.dumps(kept, ordered=True)


def _without(value: Any, *names: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: field for name, field in value.items() if field is not None and name not in names}
