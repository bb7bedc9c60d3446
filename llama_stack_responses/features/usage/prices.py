"""What usage costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import sumprod
from typing import Final, NamedTuple

from .counted import Counts
from .settings import Price

_MILLION: Final = 1_000_000
_LINES: Final = ("input_tokens", "cached_input_tokens", "output_tokens", "requests")
"""The names of what has a price."""

type _Rates = tuple[float, float, float, float]
"""The prices of a million of each of `_LINES`."""


class LineItem(NamedTuple):
    """A part of the costs of a model.

    Attributes:
        name: what is paid for.
        quantity: how much of it.
        amount: its costs.
    """

    name: str
    quantity: int
    amount: float


class Prices:
    """The prices of models.

    Args:
        table: the prices; the first that matches the name of a model counts.
        currency: their currency.
    """

    def __init__(self, table: Sequence[Price], currency: str) -> None:
        self._table, self.currency = table, currency
        self._known: dict[str, _Rates | None] = {}

    @property
    def are_none(self) -> bool:
        """Whether nothing has a price."""
        return not self._table

    def items(self, model: str, counts: Counts) -> Iterator[LineItem]:
        """Yield the costs of what was used of a model."""
        rates = self._rates(model)
        if rates is None:
            return
        for name, quantity, per_million in zip(_LINES, _quantities(counts), rates, strict=True):
            if quantity and per_million:
                yield LineItem(name, quantity, quantity * per_million / _MILLION)

    def cost(self, model: str, counts: Counts) -> float:
        """Return what it costs in total."""
        rates = self._rates(model)
        return sumprod(_quantities(counts), rates) / _MILLION if rates else 0.0

    def _rates(self, model: str) -> _Rates | None:
        """Return the prices of a model; None if it has none."""
        if len(self._known) > len(self._table) + 1_000:
            self._known.clear()
        if model not in self._known:
            price = next((each for each in self._table if fnmatchcase(model, each.match)), None)
            self._known[model] = _rates_of(price) if price else None
        return self._known[model]


def _quantities(counts: Counts) -> tuple[int, int, int, int]:
    """Return how much was used of each of `_LINES`."""
    get = counts.get
    cached = get("cached_tokens", 0)
    return get("input_tokens", 0) - cached, cached, get("output_tokens", 0), get("requests", 0)


def _rates_of(price: Price) -> _Rates:
    cached = price.input if price.cached_input is None else price.cached_input
    return price.input, cached, price.output, price.request * _MILLION
