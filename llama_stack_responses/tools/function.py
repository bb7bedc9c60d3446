"""Function tools: the client runs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llama_stack_responses.core.calls import FUNCTION
from llama_stack_responses.core.request import CreateRequest

from .tool import Function, Json, chat_function


class FunctionTool:
    """A `{type: function, name, description, parameters, strict}` tool of the request."""

    def __init__(self, declared: Json, _: CreateRequest) -> None:
        self._name: str = declared["name"]
        strict = {} if declared.get("strict") is None else {"strict": declared["strict"]}
        chat = chat_function(self._name, declared.get("description"), declared.get("parameters"), **strict)
        self._functions = (Function(chat, FUNCTION),)

    def functions(self) -> Sequence[Function]:
        """The one function."""
        return self._functions

    def chosen(self, choice: Json) -> Collection[str]:
        """It is chosen by its name."""
        return [self._name] if choice["type"] == "function" and choice["name"] == self._name else []
