"""A user's own keys for providers, sealed into the job that is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ..core.errors import ApiError, bad_request
from ..core.owner import Owner
from ..sealing import Sealer, Unopened

Json = dict[str, Any]

_PURPOSE: Final = "provider data"


class UserKeys:
    """Seals keys for one response of one owner, and opens them for whoever makes it.

    Args:
        sealer: has the secrets of the configuration.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, keys: Mapping[str, Any], response_id: str, owner: Owner) -> str | None:
        """What goes into the job; None if there are no keys.

        Raises:
            ApiError: 400, if there is no secret to seal them with.
        """
        if not keys:
            return None
        if not self._sealer.ready:
            raise bad_request(
                "This request brings keys of your own, and a response that is made in the background or under an "
                "Idempotency-Key keeps them until its end. They are kept only sealed, for which this server has no "
                "secret: set 'secrets' in the configuration of its responses provider.",
                "background",
                "unsupported_value",
            )
        return self._sealer.seal(orjson.dumps(dict(keys)), purpose=_PURPOSE, owner=owner, about=response_id)

    def open(self, sealed: str | None, response_id: str, owner: Owner) -> Json:
        """The keys that were sealed; none if there were none.

        Raises:
            ApiError: 500, if they cannot be opened.
        """
        if sealed is None:
            return {}
        try:
            value = self._sealer.open(sealed, purpose=_PURPOSE, owner=owner, about=response_id)
        except Unopened as error:
            raise ApiError(500, f"The keys that came with this request cannot be opened. {error}") from error
        keys: Json = orjson.loads(value)
        return keys
