"""Each field of a class of limits is read where something is limited: a limit that nothing reads limits nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import llama_stack_openai_chat
import llama_stack_responses
from tests.support.sources import nodes, trees

PACKAGES: Final = (llama_stack_responses, llama_stack_openai_chat)
KINDS: Final = ("Limits", "Bounds")
"""How the names of these classes end."""


def modules() -> Sequence[ast.Module]:
    """Return the modules of the packages."""
    return [module for package in PACKAGES for module in trees(Path(package.__path__[0])).values()]


def classes_of_limits(modules: Sequence[ast.Module]) -> Mapping[str, set[str]]:
    """Return the fields of each class. Classes of one name count as one."""
    found: dict[str, set[str]] = {}
    for module in modules:
        for each in nodes(module):
            if isinstance(each, ast.ClassDef) and each.name.endswith(KINDS):
                fields = {line.target.id for line in each.body if _is_field(line)}  # type: ignore[attr-defined]
                found.setdefault(each.name, set()).update(fields)
    return found


def _is_field(line: ast.stmt) -> bool:
    return isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)


def named(module: ast.Module, classes: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the classes of the names that have an annotation with one of them."""
    found: dict[str, set[str]] = {}
    for each in nodes(module):
        if isinstance(each, ast.arg | ast.AnnAssign) and each.annotation is not None:
            target = each.arg if isinstance(each, ast.arg) else _last_name(each.target)
            words = {part.id for part in ast.walk(each.annotation) if isinstance(part, ast.Name)}
            if held := words & classes.keys():
                found.setdefault(target, set()).update(held)
    return found


def _last_name(node: ast.expr) -> str:
    """Return the last name of `self._limits` or `limits`, without an underscore in front of it."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.removeprefix("_")


def reads(
    module: ast.Module, classes: Mapping[str, set[str]], elsewhere: Mapping[str, set[str]]
) -> set[tuple[str, str]]:
    """Return the classes and fields that a module reads.

    Args:
        elsewhere: the classes by the names that they have in all modules; names of this module come first.
    """
    here = named(module, classes)
    found: set[tuple[str, str]] = set()
    for each in nodes(module):
        if isinstance(each, ast.ClassDef) and each.name in classes:
            found |= {(each.name, read.attr) for read in _loads(ast.walk(each)) if _last_name(read.value) == "self"}
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Attribute) and _is_own(each.targets[0]):
            here.setdefault(_last_name(each.targets[0]), set()).update(elsewhere.get(each.value.attr, ()))
    for read in _loads(nodes(module)):
        owner = _last_name(read.value)
        held = here.get(owner, set()) if _is_own(read.value) else set()
        found |= {(each, read.attr) for each in held or elsewhere.get(owner, set())}
    return found


def _is_own(node: ast.expr) -> bool:
    """Whether it is a name, or an attribute of `self`."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _last_name(node.value) == "self")


def _loads(found: Iterable[ast.AST]) -> Iterator[ast.Attribute]:
    return (each for each in found if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load))


def unread(modules: Sequence[ast.Module]) -> set[tuple[str, str]]:
    """Return the fields of classes of limits that no module reads."""
    classes = classes_of_limits(modules)
    names: dict[str, set[str]] = {}
    for module in modules:
        for name, held in named(module, classes).items():
            names.setdefault(name, set()).update(held)
    read = {each for module in modules for each in reads(module, classes, names)}
    return {(name, field) for name, fields in classes.items() for field in fields} - read


def test_each_limit_is_read() -> None:
    assert unread(modules()) == set()


EXAMPLE: Final = """
class LoopLimits:
    rounds: int
    bytes: int
    forgotten: int

class OtherLimits:
    forgotten: int

class Loop:
    def __init__(self, limits: LoopLimits, of_other: OtherLimits):
        self._limits = limits
        self._bytes = limits.bytes
        of_other.forgotten

    def goes_on(self, round):
        limits = LoopLimits(rounds=1, bytes=1, forgotten=1)
        return round < self._limits.rounds
"""


def test_limit_without_a_reader_is_found() -> None:
    assert unread([ast.parse(EXAMPLE)]) == {("LoopLimits", "forgotten")}
