"""A request of the host's as the bytes that go to the model server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel


def request_body(params: BaseModel, defaults: Mapping[str, Any], **fixed: Any) -> bytes:
    """The JSON of all fields that are set, those that the host does not know included.

    Nothing is checked: the host may not have done so either, since its models know fewer values than servers take.

    Args:
        params: the host's request, whole or made without validation.
        defaults: fields that the request may set otherwise.
        fixed: fields that it may not.
    """
    asked = params.__dict__ | (params.__pydantic_extra__ or {})
    return dumps({**defaults, **{name: value for name, value in asked.items() if value is not None}, **fixed})


def dumps(value: Any) -> bytes:
    """JSON. A lone surrogate, which a client can send, is escaped, and numbers have any length."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def loads(data: bytes) -> Any:
    """What JSON says, NaN, infinities and lone surrogates included, which some servers send.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("It is nested too deeply.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    raise TypeError(f"a request cannot carry {value!r:.100}")
