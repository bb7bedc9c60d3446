"""What a program gets of a call that it made, from the items of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ...core.mcp_calls import error_text
from ...core.types import Json
from .runtime import CallResult

_ATTACHMENT: Final = "(an attachment, which programs cannot read)"
_CUT_OFF: Final = "The call was cut off, and its result is lost. It may have taken effect."


def result_of(call: Json, output: Json | None, schema: Json | None) -> CallResult | None:
    """Return the result of a call; None if the client has not sent it.

    Args:
        call: the item of the call.
        output: the item of its output, if that is one of its own.
        schema: the JSON schema of the value that the output encodes; None for text.
    """
    if take := _OF_CALLS.get(call["type"]):
        return take(call)
    if output is not None:
        return _OF_OUTPUTS[output["type"]](output, schema)
    # The output of a hosted tool's call follows the call. The client's calls are complete.
    return _failed(_CUT_OFF) if call.get("status") == "incomplete" else None


def _failed(message: str) -> CallResult:
    return CallResult("error", message)


def _value(value: Any) -> CallResult:
    return CallResult("json", orjson.dumps(value).decode())


def _mcp(call: Json) -> CallResult:
    if call.get("output") is not None:
        return CallResult("text", call["output"])
    error = call.get("error")
    return _failed(error_text(error) if error else _CUT_OFF)


def _code(call: Json) -> CallResult:
    if call.get("outputs") is None:
        return _failed(_CUT_OFF)
    printed = "".join(output["logs"] for output in call["outputs"] if output["type"] == "logs")
    return _failed(printed or "The code failed.") if call["status"] != "completed" else CallResult("text", printed)


_OF_CALLS: Final[Mapping[str, Callable[[Json], CallResult]]] = {
    "mcp_call": _mcp,
    "code_interpreter_call": _code,
}


def _text(output: Json, schema: Json | None) -> CallResult:
    given = output["output"]
    text = given if isinstance(given, str) else "\n".join(part.get("text", _ATTACHMENT) for part in given)
    return CallResult("json" if schema is not None and _is_json(text) else "text", text)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _shell(output: Json, _: Json | None) -> CallResult:
    return _value(output["output"])


def _patch(output: Json, _: Json | None) -> CallResult:
    return _value({"status": output["status"], "output": output.get("output") or ""})


_OF_OUTPUTS: Final[Mapping[str, Callable[[Json, Json | None], CallResult]]] = {
    "function_call_output": _text,
    "custom_tool_call_output": _text,
    "shell_call_output": _shell,
    "apply_patch_call_output": _patch,
}
