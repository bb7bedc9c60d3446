"""Parsing of request bodies with the settings of the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..concurrency.large_work import LargeWork
from ..core.shapes import RequestLimits
from ..core.types import Json
from ..requests.request import CreateRequest, parse_create, read_fields


class RequestParser:
    """Parses the bodies of requests that create a response.

    Args:
        passthrough: names of fields that are forwarded to the model server.
        limits: limits of a request.
        large_work: parses large bodies.
        refuse_unknown: whether an unknown field is an error; otherwise it is ignored.

    Attributes:
        passthrough: names of fields that are forwarded to the model server.
        refuse_unknown: whether an unknown field is an error; otherwise it is ignored.
    """

    def __init__(
        self, passthrough: frozenset[str], limits: RequestLimits, large_work: LargeWork, *, refuse_unknown: bool
    ) -> None:
        self.passthrough = passthrough
        self._limits = limits
        self._large_work = large_work
        self.refuse_unknown = refuse_unknown

    async def parse(self, body: Any, *, may_be_empty: bool = False) -> CreateRequest:
        """Parse the decoded JSON of a new request.

        Args:
            may_be_empty: whether the request needs no input.

        Raises:
            ApiError: 400 if the request is invalid; 429 if too many large ones of this user wait.
        """
        passthrough, limits, refuse_unknown = self.passthrough, self._limits, self.refuse_unknown

        def parse() -> CreateRequest:
            return parse_create(
                body,
                passthrough=passthrough,
                limits=limits,
                refuse_unknown=refuse_unknown,
                may_be_empty=may_be_empty,
            )

        return await self._large_work.run(parse, body)

    def parse_stored(self, body: Any) -> CreateRequest:
        """Parse a request that was accepted before, perhaps by an earlier version.

        Unknown fields are ignored, and it may hold more than a new request.

        Raises:
            ApiError: 400 if it is no longer valid.
        """
        return parse_create(body, passthrough=self.passthrough, limits=replace(self._limits, bounded=False))

    def fields(self, body: Json) -> Json:
        """Return the known fields of a request's body."""
        return read_fields(body, self.passthrough)
