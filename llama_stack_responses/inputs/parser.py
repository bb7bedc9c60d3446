"""Parsing of request bodies with the settings of the configuration."""

from __future__ import annotations

from typing import Any

from ..core.schema.request import CreateRequest, parse_create, read_fields
from ..core.schema.shapes import Limits

Json = dict[str, Any]


class RequestParser:
    """Parses the bodies of requests that create a response.

    Args:
        passthrough: names of fields that are forwarded to the model server.
        limits: limits of a request.
        refuse_unknown: whether an unknown field is an error; otherwise it is ignored.

    Attributes:
        passthrough: names of fields that are forwarded to the model server.
    """

    def __init__(self, passthrough: frozenset[str], limits: Limits, *, refuse_unknown: bool) -> None:
        self.passthrough = passthrough
        self._limits = limits
        self._refuse_unknown = refuse_unknown

    def parse(self, body: Any) -> CreateRequest:
        """Parse the decoded JSON of a new request.

        Raises:
            ApiError: 400 if the request is invalid.
        """
        return parse_create(
            body, passthrough=self.passthrough, limits=self._limits, refuse_unknown=self._refuse_unknown
        )

    def parse_stored(self, body: Any) -> CreateRequest:
        """Parse a request that was accepted before, perhaps by an earlier version; unknown fields are ignored.

        Raises:
            ApiError: 400 if it is no longer valid.
        """
        return parse_create(body, passthrough=self.passthrough, limits=self._limits)

    def fields(self, body: Json) -> Json:
        """Return the known fields of a request's body."""
        return read_fields(body, self.passthrough)
