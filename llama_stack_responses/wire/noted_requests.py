"""Requests for responses, which are noted as refused if they fail before there is a response."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from ..core.errors import ApiError
from ..core.types import Json
from ..generation.response_log import log_refused
from ..service.refusals import Refusals

_PATHS: Final = ("/v1/responses", "/v1/responses/compact")


def creates_response(scope: Scope) -> bool:
    """Return whether a request is one for a response or for a compaction."""
    return scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in _PATHS


class NotedRequest:
    """A request for a response. As a context manager, it notes an error with which its block ends.

    Args:
        refusals: notes it.
    """

    __slots__ = ("_body", "_refusals")

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._body: Json | None = None

    def __enter__(self) -> NotedRequest:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ClientDisconnect):
            self._refusals.note(error, self._body)

    def has(self, body: Json) -> None:
        """Note this decoded JSON of the request with its error."""
        self._body = body

    async def result[T](self, work: Awaitable[T]) -> T:
        """Return the result of what answers the request after the route has returned; note and log its error."""
        with self:
            try:
                return await work
            except ApiError as error:
                log_refused(error)
                raise
