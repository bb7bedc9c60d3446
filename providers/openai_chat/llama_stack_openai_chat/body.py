"""Encoding of the host's requests for the model server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel


def request_body(params: BaseModel, defaults: Mapping[str, Any], **fixed: Any) -> bytes:
    """Encode all fields that are set as JSON, including those that the host does not know.

    Values are not validated, since the host's models accept fewer values than servers do.

    Args:
        params: the host's request, validated or not.
        defaults: fields that the request overrides.
        fixed: fields that override the request.
    """
    asked = params.__dict__ | (params.__pydantic_extra__ or {})
    return dumps({**defaults, **{name: value for name, value in asked.items() if value is not None}, **fixed})


def dumps(value: Any) -> bytes:
    """Encode JSON. Lone surrogates, which a client can send, are escaped; integers may have any size."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def loads(data: bytes) -> Any:
    """Decode JSON, including NaN, infinities and lone surrogates, which some servers send.

    Raises:
        ValueError: it is not JSON.
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
