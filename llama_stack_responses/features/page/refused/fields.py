"""What is kept of a refused request: a bounded part of it, and why it was refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from ....core.surrogates import without_surrogates
from ....feature import Refused
from ....store import codec
from ....store.layout import order_of
from ....store.list_rows import METADATA_BYTES, Row
from ....store.records import Put
from .rows import STATUS, key_of

_WORDS: Final = 120
_READ: Final = 1024
_NAME: Final = 200
_MESSAGE: Final = 500
_LOOKED_AT: Final = 50
"""Items of an input, and parts of one, that are searched for its first words."""


def put_of(refused: Refused, days: float, tag: int) -> Put:
    """Return the op that keeps a refused request for this number of days, with the tag of its owner."""
    order = order_of(refused.at, refused.at)
    key = key_of(refused.owner, order, os.urandom(5).hex(), tag)
    return Put(key, codec.encode(_fields(refused), small=True), refused.at + days * 86_400)


def _fields(refused: Refused) -> Row:
    error, body = refused.error, refused.body if isinstance(refused.body, Mapping) else {}
    # Nothing that the user has written is kept of a request that asks to store nothing; the message may quote it.
    kept = body.get("store") in (None, True)
    return {
        "status": STATUS,
        "created_at": int(refused.at),
        "model": _text(body.get("model"), _NAME),
        "words": _words(body.get("input")) if kept else "",
        "metadata": _metadata(body.get("metadata")) if kept else {},
        "error": _text(error.code or error.type, _NAME),
        "http_status": error.status,
        "message": _message(error.message) if kept else "",
        "param": _text(error.param, _NAME) or None,
        "request_id": refused.request_id,
    }


def _message(text: str) -> str:
    cut = f"{text[: _MESSAGE - 1]}…" if len(text) > _MESSAGE else text
    return without_surrogates(cut)


def _text(value: Any, characters: int) -> str:
    return without_surrogates(value[:characters]) if isinstance(value, str) else ""


def _words(given: Any) -> str:
    """Return the first words of the last question of an input of any form."""
    if isinstance(given, str):
        return " ".join(_text(given, _READ).split())[:_WORDS]
    for item in reversed(given[-_LOOKED_AT:]) if isinstance(given, list) else ():
        if isinstance(item, Mapping) and item.get("role") == "user":
            content = item.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = (each.get("text") for each in islice(parts, _LOOKED_AT) if isinstance(each, Mapping))
            if words := next(filter(None, (_words(each) for each in texts if isinstance(each, str))), ""):
                return words
    return ""


def _metadata(given: Any) -> dict[str, str]:
    listed, left = dict[str, str](), METADATA_BYTES
    for name, value in islice(given.items() if isinstance(given, Mapping) else (), _LOOKED_AT):
        if isinstance(name, str) and isinstance(value, str):
            left -= len(name) + len(value)
            if left < 0:
                break
            listed[_text(name, _NAME)] = _text(value, METADATA_BYTES)
    return listed
