"""Ids in OpenAI's form: a prefix that names the kind, an underscore, and at most 128 random bits.

Ids of objects in a store may have a tag between the underscore and these bits: `p` and three hex digits. It
says in which partition of the store their rows are (`store/routing.py`), and an id without it has the tag 0.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .errors import bad_request

_AFTER_PREFIX = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_TAGGED = re.compile(r"[a-z]+_p([0-9a-f]{3})[0-9a-f]{24,}")
_SEEDED = re.compile(r"[a-z]+_([0-9a-f]{24})([0-9a-f]{6})")


class Seeded(NamedTuple):
    """The parts of an id that this server gave to an item of a request.

    Attributes:
        seed: 96 random bits in hex, which all these ids of a request share.
        number: the item's index in the request.
    """

    seed: str
    number: int

    def id(self, prefix: str) -> str:
        """Return the id of an item whose kind `prefix` names."""
        return f"{prefix}_{self.seed}{self.number:06x}"


def new_seed() -> str:
    """Return a seed for the ids of a request's items."""
    return os.urandom(12).hex()


def seeded(item_id: str) -> Seeded | None:
    """Return the parts of the id; None if it does not consist of a seed and an index."""
    match = _SEEDED.fullmatch(item_id)
    return Seeded(match[1], int(match[2], 16)) if match else None


def new_id(prefix: str, tag: int = 0) -> str:
    """Return `prefix`, an underscore and 96 random bits in hex: unguessable, and short in a store's keys.

    Args:
        tag: where the rows of the object are, from 0 to 4,095.
    """
    return tagged_id(prefix, os.urandom(12).hex(), tag)


def tagged_id(prefix: str, digits: str, tag: int) -> str:
    """Return an id of these digits, 24 hexadecimal ones or more, and of a tag unless it is 0."""
    return f"{prefix}_{f'p{tag:03x}' if tag else ''}{digits}"


def tag_of(object_id: str) -> int:
    """Return the tag of an id, 0 of one without."""
    match = _TAGGED.fullmatch(object_id)
    return int(match[1], 16) if match else 0


def new_ordered_id(prefix: str, milliseconds: int, tag: int = 0) -> str:
    """Return an id of the form of `new_id` that begins with a moment.

    Ids of one prefix and one tag are ordered by their moments.

    Args:
        milliseconds: the moment, in milliseconds since the epoch.
        tag: as for `new_id`.
    """
    return tagged_id(prefix, f"{milliseconds:012x}{os.urandom(6).hex()}", tag)


def check_response_id(value: str, param: str) -> str:
    """Return the id if it has the form of a response id; raise a 400 that names `param` otherwise."""
    return check_id("resp_", value, param)


def check_conversation_id(value: str, param: str) -> str:
    """Return the id if it has the form of a conversation id; raise a 400 that names `param` otherwise."""
    return check_id("conv_", value, param)


def check_id(prefix: str, value: str, param: str) -> str:
    """Return the id if it has the form of an id with this prefix; raise a 400 that names `param` otherwise."""
    if value.startswith(prefix) and _AFTER_PREFIX.fullmatch(value, len(prefix)):
        return value
    raise bad_request(
        f"Invalid '{param}': '{value[:80]}'. Expected an ID that begins with '{prefix}', with at most 64 letters, "
        "digits, underscores and dashes after it.",
        param,
        "invalid_value",
    )
