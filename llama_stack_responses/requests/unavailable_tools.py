"""Tools that a request declares and this stack cannot run: they are refused, or left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from ..core.errors import ApiError
from ..core.types import Json
from ..items.registry import HOSTED_TOOL_NAMES

Policy = Literal["refuse", "omit"]


class UnavailableTool(ApiError):  # noqa: N818 (a kind of 400)
    """The 400 of a tool that this stack cannot run.

    Args:
        message: what is missing, and how to go on.
        field: the field of its declaration that is at fault.
        code: the error's code.
    """

    def __init__(self, message: str, field: str = "type", code: str = "unsupported_value") -> None:
        super().__init__(400, message, code=code)
        self._field = field

    def at(self, path: str) -> Self:
        """Return the error with the path of the declaration in the request."""
        self.param = f"{path}.{self._field}"
        return self


class MissingTool(UnavailableTool):
    """The 400 of a tool that this stack has not at all, which the setting `unavailable_tools` may leave out.

    Args:
        kind: the `type` in its declaration.
        optional: whether it is left out with any setting.
    """

    def __init__(self, kind: str, *, optional: bool = False) -> None:
        self.kind = HOSTED_TOOL_NAMES.get(kind, kind)
        self.optional = optional
        super().__init__(
            f"This stack has no provider for tools of the type '{kind}'. Its operator can configure one, or leave such "
            f"tools out with the setting 'unavailable_tools: {{{self.kind}: omit}}': see docs/guides/tools.md."
        )


class OmittedTool:
    """A tool that is hidden from the model."""

    def functions(self) -> tuple[()]:
        """Return no functions."""
        return ()

    def handles(self) -> Collection[str]:
        """Return no handles."""
        return ()

    def chosen(self, choice: Json) -> Collection[str]:  # noqa: ARG002 (it has no functions to choose)
        """Return no names."""
        return ()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The policy for unavailable tools.

    Attributes:
        policy: for all of them, or by the tool's type; types without an entry are refused.
    """

    policy: Policy | Mapping[str, Policy] = "refuse"
    _seen: set[str] = field(default_factory=set, compare=False)

    def omits(self, error: UnavailableTool) -> bool:
        """Return whether the tool is left out; otherwise the error refuses the request."""
        if not isinstance(error, MissingTool):
            return False
        policy = self.policy if isinstance(self.policy, str) else self.policy.get(error.kind)
        return error.optional or policy == "omit"

    def is_first(self, kind: str) -> bool:
        """Return whether this is the first time that a tool of this type is left out: clients may send it each time."""
        if kind in self._seen:
            return False
        self._seen.add(kind)
        return True
