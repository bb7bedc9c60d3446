"""A model's call and its result, stored with the item that shows the call to the client.

The items of hosted tools do not show everything, such as a search's results or a program's output. The model sees it
again in the next turn, so the history stores it, under a key that clients never see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import orjson

from .types import Json

EXCHANGE: Final = "exchange"
"""The key of `{name, arguments, output}`, with the output as text or content parts."""


def exchange(name: str, arguments: Json, output: str) -> Json:
    """Return an exchange: a call of the function with this name, and its output."""
    return {"name": name, "arguments": orjson.dumps(arguments).decode(), "output": output}


def with_exchanges(items: Iterable[Json], exchanges: Mapping[str, Json]) -> list[Json]:
    """Add each item's exchange, if `exchanges` has one for its id."""
    return [{**item, EXCHANGE: exchanges[item["id"]]} if item["id"] in exchanges else item for item in items]


def without_exchange(item: Json) -> Json:
    """Return the item as clients see it."""
    return {key: value for key, value in item.items() if key != EXCHANGE} if EXCHANGE in item else item
