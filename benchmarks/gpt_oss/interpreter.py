"""Triton's interpreter without work that has no effect.

Before a launch, it replaces the functions of `triton.language` by those that compute on the CPU, and puts them back
after it. In each call of a device function, it searches `triton.language` for them again. It computes whether each
operation on integers overflows, but looks at the result in its debug mode only. Both take longer than the rest. A
third of the rest derives the same from the same types: the type and shape of each result, and a table of NumPy's types.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Protocol

from triton import language
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


def once_for_each_type(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function for types of Triton that calls `find` once for each. Types with the same name are equal."""
    known: dict[str, Any] = {}

    @wraps(find)
    def found(of: Any) -> Any:
        if of.name not in known:
            known[of.name] = find(of)
        return known[of.name]

    return found


def once_for_each_block(initialize: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return the constructor of block types that derives the attributes once from an element's type and a shape."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    @wraps(initialize)
    def create(block: Any, element: Any, shape: Any) -> None:
        key = (element.name, *(size.value if isinstance(size, language.constexpr) else size for size in shape))
        if key not in known:
            initialize(block, element, shape)
            known[key] = vars(block).copy()
        vars(block).update(known[key])

    return create


def once_for_each_shape(initialize: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return the constructor of tensors that derives a tensor's shape and size once from the shape of its type."""
    known: dict[tuple[int, ...], dict[str, Any]] = {}

    @wraps(initialize)
    def create(tensor: Any, handle: Any, of: Any) -> None:
        shape = tuple(of.shape.values) if of.is_block() else ()
        if shape not in known:
            initialize(tensor, handle, of)
            known[shape] = {"shape": tensor.shape, "numel": tensor.numel}
        vars(tensor).update(known[shape], handle=handle, type=of, dtype=of.scalar)

    return create


def speed_up() -> None:
    """Leave out the work that has no effect, in this process."""
    if not isinstance(interpreter._patch_lang, OncePerLaunch):
        interpreter._patch_lang = OncePerLaunch(interpreter._patch_lang)
        interpreter._get_np_dtype = once_for_each_type(interpreter._get_np_dtype)
        language.block_type.__init__ = once_for_each_block(language.block_type.__init__)
        language.tensor.__init__ = once_for_each_shape(language.tensor.__init__)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
