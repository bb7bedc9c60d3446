"""Tools that a request declares and this stack cannot run: they are refused, or left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from .errors import ApiError
from .items.kind import HOSTED_TOOL_NAMES, HostedToolType
from .types import Json

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

    policy: Policy | Mapping[HostedToolType, Policy] = "refuse"

    @property
    def omitted(self) -> frozenset[str]:
        """The types that are left out."""
        if isinstance(self.policy, str):
            return frozenset(get_args(HostedToolType)) if self.policy == "omit" else frozenset()
        return frozenset(kind for kind, policy in self.policy.items() if policy == "omit")

    def replacement(self, kind: str) -> OmittedTool:
        """Return the replacement for a tool of this type.

        Raises:
            UnavailableTool: it is refused.
        """
        name = HOSTED_TOOL_NAMES.get(kind, kind)
        if name in self.omitted:
            return OmittedTool()
        message = (
            f"This stack has no provider for tools of the type '{kind}'. Its operator can configure one, or leave such "
            f"tools out with the setting 'unavailable_tools: {{{name}: omit}}': see docs/guides/tools.md."
        )
        raise UnavailableTool(message)
