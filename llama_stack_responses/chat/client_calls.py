"""Calls of the client's tools and their outputs, as the function calls that the model made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..core.items.kind import Names, made_call
from ..core.items.registry import ITEM_KINDS
from ..core.stream.calls import CUSTOM_INPUT
from ..core.types import Json


def as_call(item: Json, names: Names) -> Json | None:
    """Return a client's call as a `function_call`; None for other items.

    A call of a custom tool also has its text as `input`.
    """
    make = _CALLS.get(item["type"])
    return {"type": "function_call", "call_id": item["call_id"], **make(item, names)} if make else None


def as_output(item: Json, names: Names) -> Json | None:
    """Return the output of a client's call as a `function_call_output`; None for other items."""
    make = _OUTPUTS.get(item["type"])
    return {"type": "function_call_output", "call_id": item["call_id"], "output": make(item, names)} if make else None


def called(item: Json, names: Names) -> str:
    """Return the name by which the model called a function or a custom tool."""
    namespace = item.get("namespace")
    plain = f"{namespace}__{item['name']}" if namespace else item["name"]
    return names.get((namespace, item["name"]), plain)


def _function(item: Json, names: Names) -> Json:
    return {"name": called(item, names), "arguments": item["arguments"]}


def _custom(item: Json, names: Names) -> Json:
    return {**made_call(called(item, names), {CUSTOM_INPUT: item["input"]}), "input": item["input"]}


def _local_shell(item: Json, _: Names) -> Json:
    action = item["action"]
    return made_call("local_shell", {key: action[key] for key in action if key != "type" and action[key]})


def _shell(item: Json, _: Names) -> Json:
    return made_call("shell", _given(item["action"]))


def _apply_patch(item: Json, _: Names) -> Json:
    return made_call("apply_patch", item["operation"])


def _computer(item: Json, _: Names) -> Json:
    actions = item.get("actions") or [item["action"]] * ("action" in item)
    return made_call("computer", {"actions": [_given(action) for action in actions]})


def _tool_search(item: Json, _: Names) -> Json:
    return made_call("tool_search", item["arguments"])


def _given(value: Json) -> Json:
    return {key: member for key, member in value.items() if member is not None}


_CALLS: Final[Mapping[str, Callable[[Json, Names], Json]]] = {
    "function_call": _function,
    "custom_tool_call": _custom,
    "local_shell_call": _local_shell,
    "shell_call": _shell,
    "apply_patch_call": _apply_patch,
    "computer_call": _computer,
    "tool_search_call": _tool_search,
    **{name: kind.call for name, kind in ITEM_KINDS.items() if kind.call},
}


def _output(item: Json, _: Names) -> Any:
    return item["output"]


def _shell_output(item: Json, _: Names) -> str:
    return "\n".join(_ran(entry) for entry in item["output"])


def _ran(entry: Json) -> str:
    outcome = entry["outcome"]
    ended = "The time limit was reached." if outcome["type"] == "timeout" else f"Exit code: {outcome['exit_code']}"
    texts = [entry["stdout"], entry["stderr"] and f"stderr:\n{entry['stderr']}"]
    return "\n".join([ended, *filter(None, texts)])


def _patched(item: Json, _: Names) -> str:
    return "\n".join(filter(None, [f"Status: {item['status']}", item.get("output")]))


def _screenshot(item: Json, _: Names) -> list[Json]:
    return [{**item["output"], "type": "input_image"}]


def _loaded(item: Json, names: Names) -> str:
    loaded = ", ".join(name for tool in item["tools"] for name in _names_of(tool, names))
    return f"Tools that can be called now: {loaded}." if loaded else "No such tools were found."


def _names_of(tool: Json, names: Names) -> Iterable[str]:
    if tool["type"] == "namespace":
        return [called({**member, "namespace": tool["name"]}, names) for member in tool["tools"]]
    return [called(tool, names) if "name" in tool else tool["type"]]


_OUTPUTS: Final[Mapping[str, Callable[[Json, Names], Any]]] = {
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "local_shell_call_output": _output,
    "shell_call_output": _shell_output,
    "apply_patch_call_output": _patched,
    "computer_call_output": _screenshot,
    "tool_search_output": _loaded,
    **{name: kind.output for name, kind in ITEM_KINDS.items() if kind.output},
}
