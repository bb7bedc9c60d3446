"""Every kind of tool call as the one kind that a chat knows: a function call and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from llama_stack_responses.core.exchanges import EXCHANGE

Json = dict[str, Any]


def as_functions(items: Iterable[Json]) -> Iterator[Json]:
    """The items, the calls of hosted tools as `function_call` and `function_call_output`.

    What the model called and was told is replayed where this server kept it; else, what the item says of it.
    """
    for item in items:
        told = item.get(EXCHANGE) or (_TOLD[item["type"]](item) if item["type"] in _TOLD else None)
        if told is None:
            yield item
            continue
        call_id = item.get("call_id") or item["id"]
        yield {"type": "function_call", "call_id": call_id, "name": told["name"], "arguments": told["arguments"]}
        yield {"type": "function_call_output", "call_id": call_id, "output": told["output"]}


def _exchange(name: str, arguments: Json, output: str) -> Json:
    return {"name": name, "arguments": orjson.dumps(arguments).decode(), "output": output}


def _web_search(item: Json) -> Json:
    action = {name: value for name, value in item["action"].items() if name != "sources" and value is not None}
    sources = [source["url"] for source in item["action"].get("sources") or () if "url" in source]
    return _exchange("web_search", action, "\n".join(sources) or "(The results are no longer there.)")


_TOLD: Final[Mapping[str, Callable[[Json], Json]]] = {"web_search_call": _web_search}
"""What can be told of a call whose exchange is not there, such as one that the client sent back, by the item's type."""
