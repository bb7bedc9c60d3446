"""Built-in tools that the client runs: each is one function, and its calls become items of the tool's own type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...core.shapes import Check
from ...core.types import Json
from ...items.form import ItemForm
from ...stream.call_kinds import CallKind, by_call_id
from ..tool import handle
from ..tool_function import DIRECT, Callers, Function, chat_function, validated_arguments


class ClientTool:
    """A built-in tool that the client runs.

    Args:
        types: its types in `tools` and `tool_choice`.
        name: the function name for the model.
        description: the description for the model.
        parameters: JSON schema of its arguments.
        form: form of its call items.
        shape: check of its arguments.
        fields: converts arguments to the item's fields.
        callers: what may call it.
        result: JSON schema of what a program gets of a call; None for text.
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
        callers: Callers = DIRECT,
        result: Json | None = None,
    ) -> None:
        def whole(arguments: str) -> Json | None:
            value = validated_arguments(arguments, shape)
            return None if value is None else fields(value)

        self._types = types
        self._functions = (
            Function(
                chat_function(name, description, parameters),
                CallKind(form, by_call_id, whole=whole),
                callers=callers,
                output_schema=result,
            ),
        )

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handles of its types."""
        return [handle(each) for each in self._types]

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [function.name for function in self._functions if choice["type"] in self._types]


def an_object(properties: Json, *required: str) -> Json:
    """Return the JSON schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
