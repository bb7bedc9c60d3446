"""The limits that keys have themselves."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from ....core.errors import ApiError
from ....core.lru_cache import LruCache
from ....core.owner import Owner
from ..prices import Prices
from ..settings import Limit

_KEYS: Final = 20_000


class KeyLimit(Limit):
    """The limit that a key has itself."""

    @property
    def label(self) -> str:
        """The same name for all keys: labels have few values."""
        return "key"


class KeyLimits:
    """Reads the limits that users have by the keys of their requests, which no call of the store is needed for.

    Args:
        prices: what usage costs.
    """

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: LruCache[tuple[str, ...], Limit] = LruCache(_KEYS)

    def of(self, owner: Owner) -> Limit | None:
        """Return the limit of the key of a request; None if it has none.

        Raises:
            ApiError: 403, the limit cannot be enforced here.
        """
        if not owner.limits:
            return None
        given = (owner.key, *owner.limits)
        limit = self._known.get(given)
        if limit is None:
            limit = self._read(owner)
            self._known.set(given, limit)
        return limit

    def _read(self, owner: Owner) -> Limit:
        amounts = dict(each.partition("=")[::2] for each in owner.limits)
        try:
            limit = KeyLimit.model_validate({**amounts, "by": "key", "name": f"key {owner.key}"})
        except ValidationError as error:
            names = ", ".join(str(each["loc"][0]) for each in error.errors())
            message = f"The key of this request has limits that this server does not know ({names}): use another key."
            raise ApiError(403, message, code="insufficient_permissions") from None
        if limit.has_budget and self._prices.are_none:
            message = "The key of this request has a budget, but nothing has a price: set 'usage.prices'."
            raise ApiError(403, message, code="insufficient_permissions")
        return limit
