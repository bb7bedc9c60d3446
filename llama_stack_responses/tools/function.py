"""Function tools: the client runs them."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.core.calls import FUNCTION_CALL, CallKind


class FunctionTool:
    """A `{type: function, name, description, parameters, strict}` tool of the request."""

    call_kind: CallKind = FUNCTION_CALL

    def __init__(self, declared: dict[str, Any]) -> None:
        self.name: str = declared["name"]
        self._declared = declared

    def chat_function(self) -> dict[str, Any]:
        """The same function in a chat request, which nests it."""
        parameters = self._declared.get("parameters") or {"type": "object", "properties": {}}
        function: dict[str, Any] = {"name": self.name, "parameters": parameters}
        for field in ("description", "strict"):
            if (value := self._declared.get(field)) is not None:
                function[field] = value
        return {"type": "function", "function": function}
