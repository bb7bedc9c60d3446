"""Kernels that are not run: their launches are recorded as the builds that Triton would select."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import native_specialize_impl

from llama_stack_gpt_oss.engine.kernels import triton_ops

# The results that later operations read as indexes. All others may have any value.
INDEXES = ("unpacked", "chosen", "temperatures", "tokens")

Build = tuple[Any, ...]


class RecordedKernel:
    """Stands in for a kernel, with its launch syntax."""

    def __init__(self, kernel: Any, builds: dict[Build, str]) -> None:
        self._name = kernel.fn.__name__
        self._signature = inspect.signature(kernel.fn)
        self._rules = kernel.kwargs
        self._builds = builds

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return the launch. A grid without programs launches nothing, but the kernel is compiled for it too."""
        return self._launch

    def _launch(self, *arguments: Any, **named: Any) -> None:
        options = {name: named.pop(name) for name in list(named) if name not in self._signature.parameters}
        bound = self._signature.bind(*arguments, **named).arguments
        for name in INDEXES:
            if name in bound:
                bound[name].zero_()
        build = (self._name, *(self._selects(name, value) for name, value in bound.items()), *sorted(options.items()))
        self._builds.setdefault(build, self._described(bound, options))

    def _selects(self, name: str, value: Any) -> Any:
        """Return what an argument contributes to the choice of a build, by Triton's own rule."""
        if "constexpr" in str(self._signature.parameters[name].annotation):
            return name, value
        fixed = name in (self._rules.get("do_not_specialize") or ())
        unaligned = name in (self._rules.get("do_not_specialize_on_alignment") or ())
        return name, native_specialize_impl(BaseBackend, value, False, not fixed, not unaligned)

    def _described(self, bound: dict[str, Any], options: dict[str, Any]) -> str:
        values = {name: value for name, value in bound.items() if not isinstance(value, torch.Tensor)}
        return f"{self._name} {values | options}"


@contextmanager
def recorded_launches() -> Iterator[dict[Build, str]]:
    """Yield the builds that are launched inside the block, each with a launch that selects it."""
    builds: dict[Build, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, kernel in vars(triton_ops).copy().items():
            if name.endswith("_kernel"):
                patch.setattr(triton_ops, name, RecordedKernel(kernel, builds))
        yield builds
