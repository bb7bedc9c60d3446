"""Searches for tools that the model does not see before, and the tools that were found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...core.exchanges import exchange
from ...core.item_fields import ID, OWN_ID, STATUS
from ...core.shapes import Check, Location, anything, missing, object_of, one_of, schema_of, takes
from ...core.types import Json
from ..form import ItemForm, ItemType
from ..kind import ItemKind, Names, Reply, called, made_call
from ..view import CallView, OutputView, Shown, ToolListView, given_arguments, listed_tools

_EXECUTION: Final = one_of("server", "client")


def _joined(check: Check) -> Check:
    """Return the check for an item of tool search: a client's call and its output are joined by a `call_id`."""

    @takes(schema_of(check))
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        checked: dict[str, Any] = check(value, at)
        if checked["execution"] == "client" and "call_id" not in checked:
            raise missing(at.key("call_id"))
        return checked

    return check_it


_CALL: Final = _joined(
    object_of(
        {"id": OWN_ID, "call_id": ID, "execution": _EXECUTION, "arguments": anything, "status": STATUS},
        "arguments",
        defaults={"execution": "server"},
    )
)


def _output(tools: Check) -> Check:
    """Return the check for an output, given the check for its `tools`."""
    return _joined(
        object_of(
            {"id": OWN_ID, "call_id": ID, "execution": _EXECUTION, "tools": tools, "status": STATUS},
            "tools",
            defaults={"execution": "server"},
        )
    )


def _additional_tools(tools: Check) -> Check:
    """Return the check for an item that declares tools, given the check for its `tools`."""
    return object_of({"id": OWN_ID, "role": one_of("developer"), "tools": tools}, "role", "tools")


TOOL_SEARCH_CALL: Final = ItemForm("tool_search_call", "tsc")
TOOL_SEARCH_OUTPUT: Final = ItemForm("tool_search_output", "tso")


def _exchange(item: Json) -> Json:
    return exchange("tool_search", item["arguments"], "The tools can be called now.")


def _made(item: Json, _: Names) -> Json:
    return made_call("tool_search", item["arguments"])


def _loaded(item: Json, names: Names) -> str:
    loaded = ", ".join(name for tool in item["tools"] for name in _names_of(tool, names))
    return f"Tools that can be called now: {loaded}." if loaded else "No such tools were found."


def _names_of(tool: Json, names: Names) -> Iterable[str]:
    if tool["type"] == "namespace":
        return [called({**member, "namespace": tool["name"]}, names) for member in tool["tools"]]
    return [called(tool, names) if "name" in tool else tool["type"]]


def _tools(item: Shown) -> Any:
    return item.get("tools")


KINDS: Final = (
    ItemKind(
        TOOL_SEARCH_CALL,
        _CALL,
        _exchange,
        call=_made,
        written={"arguments": None},
        view=CallView(arguments=given_arguments, run_by="client"),
    ),
    ItemKind(
        TOOL_SEARCH_OUTPUT,
        carrier=_output,
        output=_loaded,
        reply=Reply("tool_search_call", repeats=("execution",)),
        view=OutputView(_tools),
    ),
    ItemKind(
        ItemType("additional_tools", "at", has_status=False),
        carrier=_additional_tools,
        view=ToolListView(listed_tools, "server_label"),
    ),
)
