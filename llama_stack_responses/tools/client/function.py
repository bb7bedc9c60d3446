"""Function tools, which the client runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.types import Json
from ...requests.request import CreateRequest
from ...stream.call_kinds import FUNCTION, CallKind, in_namespace
from ..function_names import chat_name
from ..tool import handle
from ..tool_function import Function, callers_of, chat_function


class FunctionTool:
    """A `{type: function, name, description, parameters, strict}` tool of the request."""

    def __init__(self, declared: Json, _: CreateRequest) -> None:
        self._name: str = declared["name"]
        self._functions = (client_function(declared),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handle of its name."""
        return (handle("function", self._name),)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names it."""
        return [self._name] if is_chosen(choice, "function", self._name) else []


def client_function(declared: Json, namespace: str | None = None) -> Function:
    """Convert a function of `tools` or of a namespace."""
    name: str = declared["name"]
    strict = {} if declared.get("strict") is None else {"strict": declared["strict"]}
    chat = chat_function(chat_name(namespace, name), declared.get("description"), declared.get("parameters"), **strict)
    return declared_function(declared, chat, FUNCTION, namespace)


def declared_function(declared: Json, chat: Json, kind: CallKind, namespace: str | None) -> Function:
    """Return a tool that the client declares under a name, with its entry of a chat request's `tools`."""
    name: str = declared["name"]
    return Function(
        chat,
        in_namespace(kind, namespace, name) if namespace else kind,
        origin=(namespace, name),
        deferred=declared.get("defer_loading", False),
        callers=callers_of(declared),
        output_schema=declared.get("output_schema"),
    )


def is_chosen(choice: Json, kind: str, name: str, namespace: str | None = None) -> bool:
    """Whether a choice names the client's tool of this kind and name; it may omit the namespace."""
    meant = choice.get("namespace", namespace)
    return (choice["type"], choice.get("name"), meant) == (kind, name, namespace)
