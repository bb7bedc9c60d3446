"""The host's connectors: MCP servers that the operator has named."""

from __future__ import annotations

from typing import Any

from .failures import failed


class HostConnectors:
    """Looks up connectors.

    Args:
        connectors: the host's implementation of its Connectors API; None if the stack has none.
    """

    def __init__(self, connectors: Any | None) -> None:
        self._connectors = connectors

    async def url(self, connector_id: str) -> str | None:
        """Return the URL of a connector, or None if there is none with this id.

        Raises:
            ApiError: 503 if the host cannot list its connectors.
        """
        if self._connectors is None:
            return None
        # Not the lookup by id: for that, the host first requests the server's own description.
        try:
            listed = (await self._connectors.list_connectors()).data
        except Exception as error:
            raise failed("list of connectors", "tools", error) from error
        return next((each.url for each in listed if each.connector_id == connector_id), None)
