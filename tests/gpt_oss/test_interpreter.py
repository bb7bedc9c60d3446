"""Triton's interpreter does no work without an effect, and computes the same."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from benchmarks.gpt_oss.interpreter import OncePerLaunch, Replaced, once_for_each_type


@triton.jit
def doubled(value):  # type: ignore[no-untyped-def]
    return value + value


@triton.jit  # type: ignore[untyped-decorator]
def doubling_kernel(numbers, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    for place in range(COUNT):
        tl.store(numbers + place, doubled(tl.load(numbers + place)))


@triton.jit
def failing_kernel(numbers):  # type: ignore[no-untyped-def]
    tl.store(numbers, doubled(numbers.missing))


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions for which Triton replaces what they use."""
    names: list[str] = []
    own = interpreter._patch_lang
    assert isinstance(own, OncePerLaunch)

    def counted(function: Any) -> Replaced:
        names.append(function.__name__)
        return own._replace(function)

    monkeypatch.setattr(interpreter, "_patch_lang", OncePerLaunch(counted))
    return names


def test_functions_are_replaced_once_per_launch(replaced: list[str]) -> None:
    numbers = torch.arange(5.0)
    for _ in range(2):
        doubling_kernel[(3,)](numbers, 5)
    assert numbers.tolist() == [64.0 * number for number in range(5)]
    assert replaced == ["doubling_kernel"] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_functions_are_put_back_after_launch(replaced: list[str], fails: bool) -> None:
    before = dict(vars(tl))
    numbers = torch.arange(5.0)
    if fails:
        with pytest.raises(interpreter.InterpreterError, match="missing"):
            failing_kernel[(1,)](numbers)
    else:
        doubling_kernel[(1,)](numbers, 5)
    assert len(replaced) == 1
    assert dict(vars(tl)) == before


def test_overflow_is_not_computed_where_it_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, added = interpreter.interpreter_builder, Mock(side_effect=interpreter.interpreter_builder.create_add)
    monkeypatch.setattr(builder, "create_add", added)
    numbers = torch.arange(5, dtype=torch.int32)
    doubling_kernel[(1,)](numbers, 5)
    assert numbers.tolist() == [0, 2, 4, 6, 8]
    assert added.call_count == 5


@pytest.mark.parametrize("element", [tl.float32, tl.bfloat16, tl.int1, tl.pointer_type(tl.float32)])
@pytest.mark.parametrize("shape", [[16], [16, 4], [tl.constexpr(16), 4], tl.tuple([4, 16])])
def test_types_and_tensors_are_those_of_triton(element: Any, shape: Any) -> None:
    """Also those of a type that was there before, in whatever form its shape is given."""
    create_type, create_tensor = (each.__init__.__wrapped__ for each in (tl.block_type, tl.tensor))
    for handle in (object(), object()):
        expected = tl.block_type.__new__(tl.block_type)
        create_type(expected, element, shape)
        found = tl.block_type(element, shape)
        assert vars(found) == vars(expected)
        for of in (element, expected):
            tensor = tl.tensor.__new__(tl.tensor)
            create_tensor(tensor, handle, of)
            assert vars(tl.tensor(handle, of)) == vars(tensor)
        assert interpreter._get_np_dtype(found) is interpreter._get_np_dtype.__wrapped__(expected)


def test_numpy_type_is_found_once_for_each_type() -> None:
    find = Mock(side_effect=lambda of: of.name, __name__="find")
    found = once_for_each_type(find)
    assert [found(of) for of in (tl.int32, tl.float32, tl.int32)] == ["int32", "fp32", "int32"]
    assert find.call_count == 2
