"""What usage costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from .counted import Counts
from .settings import Price

_MILLION: Final = 1_000_000


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
        self._known: dict[str, Price | None] = {}

    @property
    def are_none(self) -> bool:
        """Whether nothing has a price."""
        return not self._table

    def of(self, model: str) -> Price | None:
        """Return the price of a model; None if it has none."""
        if len(self._known) > len(self._table) + 1_000:
            self._known.clear()
        if model not in self._known:
            self._known[model] = next((each for each in self._table if fnmatchcase(model, each.match)), None)
        return self._known[model]

    def items(self, model: str, counts: Counts) -> Iterator[LineItem]:
        """Yield the costs of what was used of a model."""
        price = self.of(model)
        if price is None:
            return
        cached, inputs = counts.get("cached_tokens", 0), counts.get("input_tokens", 0)
        of_cached = price.input if price.cached_input is None else price.cached_input
        for name, quantity, per_million in (
            ("input_tokens", inputs - cached, price.input),
            ("cached_input_tokens", cached, of_cached),
            ("output_tokens", counts.get("output_tokens", 0), price.output),
            ("requests", counts.get("requests", 0), price.request * _MILLION),
        ):
            if quantity and per_million:
                yield LineItem(name, quantity, quantity * per_million / _MILLION)

    def cost(self, model: str, counts: Counts) -> float:
        """Return what it costs in total."""
        return sum(item.amount for item in self.items(model, counts))
