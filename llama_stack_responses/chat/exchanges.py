"""Every kind of tool call as the one kind that a chat knows: a function call and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from llama_stack_responses.core.exchanges import EXCHANGE

from .client_calls import Names, as_call, as_output

Json = dict[str, Any]


def as_functions(items: Iterable[Json], names: Names) -> Iterator[Json]:
    """The items, all calls as `function_call` and `function_call_output`.

    What the model called of hosted tools and was told is replayed where this server kept it; else, what the item says
    of it.

    Args:
        names: what the model calls the client's functions.
    """
    answered: set[str] = set()
    for item in items:
        if told := item.get(EXCHANGE) or (_TOLD[item["type"]](item) if _is_hosted(item) else None):
            call_id = item.get("call_id") or item["id"]
            answered.add(call_id)
            yield {"type": "function_call", "call_id": call_id, "name": told["name"], "arguments": told["arguments"]}
            yield {"type": "function_call_output", "call_id": call_id, "output": told["output"]}
        elif call := as_call(item, names):
            yield call
        elif item.get("execution") == "server" or item.get("call_id") in answered:
            continue  # the output of a hosted call, which was told with it
        else:
            yield as_output(item, names) or item


def _is_hosted(item: Json) -> bool:
    """Whether the item shows a call that the server ran."""
    return item["type"] in _TOLD and item.get("execution") != "client"


def _exchange(name: str, arguments: Json, output: str) -> Json:
    return {"name": name, "arguments": orjson.dumps(arguments).decode(), "output": output}


def _web_search(item: Json) -> Json:
    action = {name: value for name, value in item["action"].items() if name != "sources" and value is not None}
    sources = [source["url"] for source in item["action"].get("sources") or () if "url" in source]
    return _exchange("web_search", action, "\n".join(sources) or "(The results are no longer there.)")


def _tool_search(item: Json) -> Json:
    return _exchange("tool_search", item["arguments"], "The tools can be called now.")


_TOLD: Final[Mapping[str, Callable[[Json], Json]]] = {"web_search_call": _web_search, "tool_search_call": _tool_search}
"""What can be told of a call whose exchange is not there, such as one that the client sent back, by the item's type."""
