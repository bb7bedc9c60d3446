"""Limits on non-streamed answers to the host's own inference providers.

Their clients, of the `openai` package, buffer the whole answer. Streams are limited by their readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

from llama_stack_openai_chat.retries import says_of_request

_MAX_BYTES: Final = 1 << 26
"""Maximum bytes of one answer."""
_STREAM: Final = "text/event-stream"


def bound_answers(client: Any) -> None:
    """Make a client of the `openai` package refuse answers that are too large, while it reads them.

    Args:
        client: a client that is used for a single request, or that is bounded already.
    """
    http = client._client
    hooks = http.event_hooks
    if _bound not in hooks["response"]:
        # A compressed answer could expand a thousandfold.
        http.headers["accept-encoding"] = "identity"
        http.event_hooks = {**hooks, "response": [*hooks["response"], _bound]}


async def _bound(response: httpx2.Response) -> None:
    """Limit the body of a response, and the retries of it. httpx2 calls this before it reads the body."""
    if response.headers.get("content-type", "").startswith(_STREAM):
        return
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("The model server compressed its answer, which was not requested.")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream)
    if response.status_code == httpx2.codes.INTERNAL_SERVER_ERROR:
        await response.aread()
        if says_of_request(response.text):
            # The client would send the same request again, twice.
            response.headers["x-should-retry"] = "false"


class _Bounded(httpx2.AsyncByteStream):
    """A body that raises an error when it exceeds the limit."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"The model server's answer is larger than {_MAX_BYTES} bytes.")
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._inner.aclose()
