"""Secrets of a request that are sealed into its job and deleted with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.types import Json
from ..requests.tool_secrets import holds_secrets, join_secrets, split_secrets
from ..sealing.sealer import Sealer, Unopened

_PURPOSE: Final = "job"
_WHAT: Final = (
    "your keys, the secrets of a tool, or an MCP server's URL that may contain one, as a background request or an "
    "Idempotency-Key requires"
)


class JobSecrets:
    """Seals the secrets of a request for one response of one owner, and opens them for the worker that runs it.

    They are the user's own credentials for providers, the tokens, headers and URLs of the request's MCP servers, and
    the secrets of its other tools.

    Args:
        sealer: seals with a secret that is not in the store; without one, nothing is sealed.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    async def load(self) -> None:
        """Get the secret of the store, before anything is sealed or opened.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._sealer.load()

    def seal(self, body: Json, keys: Mapping[str, Any], response_id: str, owner: Owner) -> tuple[Json, str | None]:
        """Return the request's JSON without its secrets, and the sealed secrets; None if it has none.

        Raises:
            ApiError: 400, they would be stored beside the secret that seals them.
        """
        tools = body.get("tools") or []
        if not self._sealer.protects_rows:
            if keys or any(holds_secrets(tool) for tool in tools):
                self._sealer.check_protects_rows(_WHAT, "background")
            return body, None
        public, of_tools = split_secrets(tools)
        if not (keys or of_tools):
            return body, None
        value = orjson.dumps({"keys": dict(keys), "tools": of_tools})
        sealed = self._sealer.seal(value, purpose=_PURPOSE, owner=owner, about=response_id)
        return body | {"tools": public}, sealed

    def open(self, body: Json, sealed: str | None, response_id: str, owner: Owner) -> tuple[Json, Json]:
        """Return the request's JSON with its secrets, and the user's own credentials.

        Raises:
            ApiError: 500, the secrets cannot be opened.
        """
        if sealed is None:
            return body, {}
        try:
            value = self._sealer.open(sealed, purpose=_PURPOSE, owner=owner, about=response_id)
        except Unopened as error:
            raise ApiError(500, f"The keys stored with this request cannot be decrypted. {error}") from error
        secrets = orjson.loads(value)
        return body | {"tools": join_secrets(body.get("tools") or [], secrets["tools"])}, secrets["keys"]
