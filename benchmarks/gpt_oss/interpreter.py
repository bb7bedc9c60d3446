"""Triton's interpreter without work that has no effect.

Before a launch, it replaces the functions of `triton.language` by those that compute on the CPU, and puts them back
after it. In each call of a device function, it searches `triton.language` for them again. It computes whether each
operation on integers overflows, but looks at the result in its debug mode only. Both take longer than the rest.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from triton.runtime import interpreter


class Replaced(Protocol):
    """What was replaced before a launch."""

    def restore(self) -> None: ...


class OncePerLaunch:
    """Replaces the functions that a module uses once in a launch, and not in each call of a device function.

    Args:
        replace: Triton's own function that replaces them for a kernel or a device function.
    """

    def __init__(self, replace: Callable[[Any], Replaced]) -> None:
        self._replace = replace
        self._launch: Replaced | None = None
        self._modules: set[int] = set()

    def __call__(self, function: Any) -> "OncePerLaunch":
        """Replace what a kernel or a device function uses; Triton restores after a kernel only."""
        module = id(function.__globals__)
        if module not in self._modules:
            replaced = self._replace(function)
            self._launch = self._launch or replaced
            self._modules.add(module)
        return self

    def restore(self) -> None:
        """Put back what was replaced for the kernel."""
        launch, self._launch = self._launch, None
        self._modules.clear()
        if launch:
            launch.restore()


def speed_up() -> None:
    """Leave out the work that has no effect, in this process."""
    if not isinstance(interpreter._patch_lang, OncePerLaunch):
        interpreter._patch_lang = OncePerLaunch(interpreter._patch_lang)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
