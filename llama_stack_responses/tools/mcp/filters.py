"""Which tools of an MCP server a request allows, and which of them need an approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from ...core.types import Json


class ToolFilter:
    """A filter of tools. Without a condition it matches none.

    A filter may have thousands of names, and a server thousands of tools.

    Args:
        names: the names of the matching tools; None for any name.
        read_only: whether they only read; None for any tool.
        whole: whether a filter without a condition matches all.

    Attributes:
        names: the names in the filter.
    """

    def __init__(
        self, names: Sequence[str] | None = None, read_only: bool | None = None, *, whole: bool = False
    ) -> None:
        self.names = frozenset(names or ())
        self._is_named = names is not None
        self._read_only = read_only
        self._whole = whole

    @classmethod
    def of(cls, wanted: Mapping[str, Any] | None) -> Self:
        """Return the filter of an object with `tool_names` and `read_only`, both of which are optional."""
        wanted = wanted or {}
        return cls(wanted.get("tool_names"), wanted.get("read_only"))

    @classmethod
    def allowed(cls, allowed: Sequence[str] | Mapping[str, Any] | None) -> Self:
        """Return the filter of an `allowed_tools`: a list of names, or an object; all tools without one."""
        if isinstance(allowed, Mapping) and allowed:
            return cls.of(allowed)
        return cls(whole=True) if allowed is None or isinstance(allowed, Mapping) else cls(allowed)

    def fits(self, tool: Json) -> bool:
        """Return whether a tool meets all conditions of the filter."""
        if not self._is_named and self._read_only is None:
            return self._whole
        if self._is_named and tool["name"] not in self.names:
            return False
        return self._read_only is None or self._read_only == bool((tool.get("annotations") or {}).get("readOnlyHint"))


NO_TOOL: Final = ToolFilter()
EVERY_TOOL: Final = ToolFilter(whole=True)


def approvals(required: str | Mapping[str, Any]) -> tuple[ToolFilter, ToolFilter]:
    """Return which tools always need an approval, and which never, by a `require_approval`."""
    if isinstance(required, str):
        return (EVERY_TOOL, NO_TOOL) if required == "always" else (NO_TOOL, EVERY_TOOL)
    return ToolFilter.of(required.get("always")), ToolFilter.of(required.get("never"))
