"""Runs straight PTX code on the CPU: the few integer instructions that decode weights, and products of bf16 pairs."""

import re
from collections.abc import Callable

import torch

BITS = 0xFFFFFFFF
Operation = Callable[..., torch.Tensor]


def run(code: str, inputs: dict[str, torch.Tensor], outputs: int) -> list[torch.Tensor]:
    """Return the registers $0 to $outputs, as bf16. Inputs are words of 32 bits, in int64."""
    registers = dict(inputs)
    lines = [line.strip().removesuffix(";") for line in code.strip().strip("{}").splitlines()]
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        operands = re.findall(r"\{.*?\}|[^,\s]+", rest)
        if name == ".reg":
            continue
        values = [registers[each] if each in registers else torch.tensor(int(each, 0)) for each in operands[1:]]
        if operands[0].startswith("{"):
            for half, target in enumerate(re.findall(r"\$\d+", operands[0])):
                registers[target] = values[0] >> 16 * half & 0xFFFF
        else:
            registers[operands[0]] = OPERATIONS[name](*values) & BITS
    return [_float(registers[f"${number}"]).bfloat16() for number in range(outputs)]


def _float(half: torch.Tensor) -> torch.Tensor:
    """Return the value in f64 of the 16 bits of a bf16."""
    return half.to(torch.int32).bitwise_left_shift(16).view(torch.float32).double()


def _look_up(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the bits that the table has for those of a, b and c."""
    found = torch.zeros_like(a | b | c)
    for place in range(8):
        if int(table) >> place & 1:
            found |= (a if place & 4 else ~a) & (b if place & 2 else ~b) & (c if place & 1 else ~c)
    return found


def _multiply_and_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a * b + c of both halves, rounded once: f64 has all bits of a product."""
    halves = []
    for shift in (0, 16):
        x, y, z = (_float(word >> shift & 0xFFFF) for word in (a, b, c))
        halves.append((x * y + z).bfloat16())
    low, high = (half.view(torch.int16).long() & 0xFFFF for half in halves)
    return low | high << 16


OPERATIONS: dict[str, Operation] = {
    "and.b32": torch.bitwise_and,
    "shl.b32": torch.bitwise_left_shift,
    "shr.u32": torch.bitwise_right_shift,
    "shf.l.wrap.b32": lambda low, high, shift: high << shift | low >> 32 - shift,
    "lop3.b32": _look_up,
    "fma.rn.bf16x2": _multiply_and_add,
    "mov.b32": lambda word: word,
}
