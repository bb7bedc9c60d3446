"""The host's connectors: MCP servers that the operator has given names."""

from __future__ import annotations

from typing import Any

from .failures import failed


class HostConnectors:
    """Looks them up.

    Args:
        connectors: the host's implementation of its Connectors API; None if the stack has none.
    """

    def __init__(self, connectors: Any | None) -> None:
        self._connectors = connectors

    async def url(self, connector_id: str) -> str | None:
        """Where such a server is; None if there is none of that name.

        Raises:
            ApiError: 503 when the host cannot say.
        """
        if self._connectors is None:
            return None
        # Not the one by its id: the host would first ask that server who it is.
        try:
            listed = (await self._connectors.list_connectors()).data
        except Exception as error:
            raise failed("list of connectors", "tools", error) from error
        return next((each.url for each in listed if each.connector_id == connector_id), None)
