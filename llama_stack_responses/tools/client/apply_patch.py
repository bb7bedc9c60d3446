"""`apply_patch`: the client creates, updates and deletes files on the model's instructions."""

from __future__ import annotations

from typing import Final

from ...core.types import Json
from ...items.kinds.apply_patch import APPLY_PATCH_CALL, PATCH_OPERATION
from ...requests.request import CreateRequest
from ..tool import Tool
from ..tool_function import callers_of
from .client_tool import ClientTool, an_object

_DESCRIPTION: Final = """\
Creates, updates or deletes one file. `path` is relative to the folder that you work in.
For `create_file`, each line of `diff` is a line of the new file behind a `+`.
For `update_file`, `diff` has one or more sections. A section begins with a line `@@`, or `@@ ` and the line of the \
file that names the class or function it is in. Behind it come lines of the file: unchanged ones behind a space, \
removed ones behind a `-`, added ones behind a `+`; about three unchanged lines before and after a change. There are \
no line numbers.
`delete_file` takes no `diff`."""

_PARAMETERS: Final = an_object(
    {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": {"type": "string"},
        "diff": {"type": "string"},
    },
    "type",
    "path",
)


_RESULT: Final[Json] = {
    "type": "object",
    "properties": {"status": {"enum": ["completed", "failed"]}, "output": {"type": "string"}},
}
"""What a program gets of a call."""


def apply_patch_tool(declared: Json, _: CreateRequest) -> Tool:
    """Create the tool of a `{type: apply_patch}` entry."""
    return ClientTool(
        ["apply_patch"],
        "apply_patch",
        _DESCRIPTION,
        _PARAMETERS,
        APPLY_PATCH_CALL,
        PATCH_OPERATION,
        lambda operation: {"operation": operation},
        callers_of(declared),
        _RESULT,
    )
