"""What the model called and was told, kept with the item that shows the call to the client.

The items of hosted tools do not say all of it: a search's results, a program's output. The model of the next turn sees
it again, so it is kept in the stored history, under a key of its own that no client ever sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = dict[str, Any]

EXCHANGE: Final = "exchange"
"""The key: `{name, arguments, output}`, the output as text or content parts."""


def with_exchanges(items: Iterable[Json], exchanges: Mapping[str, Json]) -> list[Json]:
    """The items, each with its exchange if it has one; `exchanges` has them by the item's id."""
    return [{**item, EXCHANGE: exchanges[item["id"]]} if item["id"] in exchanges else item for item in items]


def without_exchange(item: Json) -> Json:
    """The item as clients see it."""
    return {key: value for key, value in item.items() if key != EXCHANGE} if EXCHANGE in item else item
