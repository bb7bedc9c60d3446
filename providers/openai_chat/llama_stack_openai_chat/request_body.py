"""The host's requests as bodies for the model server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from .json_encoding import dumps, is_large, pieces

_INLINE_BYTES: Final = 1 << 20
"""Approximate bytes of a request that is encoded in one call."""
_TURN_BYTES: Final = 1 << 16
"""Approximate bytes of a larger request that are encoded before others run."""


async def request_body(params: BaseModel, defaults: Mapping[str, Any], **fixed: Any) -> bytes | bytearray:
    """Encode all fields that are set as JSON, including those that the host does not know.

    Values are not validated, since the host's models accept fewer values than servers do.

    Args:
        params: the host's request, validated or not.
        defaults: fields that the request overrides.
        fixed: fields that override the request.
    """
    fields = params.__dict__ | (params.__pydantic_extra__ or {})
    return await _encoded({**defaults, **{name: value for name, value in fields.items() if value is not None}, **fixed})


async def _encoded(request: Mapping[str, Any]) -> bytes | bytearray:
    """Encode a request. Others run while a large one is encoded."""
    if not is_large(request, _INLINE_BYTES):
        return dumps(request)
    body, rested = bytearray(), 0
    for piece in pieces(request):
        body += piece
        if len(body) - rested > _TURN_BYTES:
            rested = len(body)
            await asyncio.sleep(0)
    return body
