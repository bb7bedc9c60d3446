"""Built-in tools that the client runs: each is one function whose calls make items of the tool's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from llama_stack_responses.core.schema.shapes import Check
from llama_stack_responses.core.stream.calls import CallKind, ItemForm, by_call_id

from ..tool import Function, Json, chat_function
from .checked import checked


class ClientTool:
    """Such a tool.

    Args:
        types: its types, in tools and in choices.
        name: the name by which the model calls it.
        description: what the model is told of it.
        parameters: the JSON schema of its arguments.
        form: the items that its calls make.
        shape: what arguments must be.
        fields: makes the item's fields out of them.
    """

    def __init__(
        self,
        types: Collection[str],
        name: str,
        description: str,
        parameters: Json,
        form: ItemForm,
        shape: Check,
        fields: Callable[[Json], Json],
    ) -> None:
        def whole(arguments: str) -> Json | None:
            found = checked(arguments, shape)
            return None if found is None else fields(found)

        self._types = types
        self._functions = (
            Function(chat_function(name, description, parameters), CallKind(form, by_call_id, whole=whole)),
        )

    def functions(self) -> Sequence[Function]:
        """The one function."""
        return self._functions

    def chosen(self, choice: Json) -> Collection[str]:
        """It is chosen by its type."""
        return [function.name for function in self._functions if choice["type"] in self._types]


def an_object(properties: Json, *required: str) -> Json:
    """The schema of an object that has these members and no others."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
