"""Every place where this package reaches into the host, its web server or a library is listed in the documentation.

Such a place uses a private name of an object of another package, assigns to an object that is not its own, or extends a
class of uvicorn. docs/explanation/host-changes.md has what needs each, and the test that shows it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import nodes, trees

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "llama_stack_responses"
PAGE: Final = ROOT / "docs/explanation/host-changes.md"

STANDARD: Final = {"os", "sys", "zlib"}
"""Modules of Python whose documentation names their private names."""
NEAR: Final = ("fetch/", "host/", "lifecycle/", "logs.py", "tools/mcp/", "wire/")
"""Where assignments to objects that are not the module's own count."""
SETTERS: Final = {"setattr", "delattr", "object.__setattr__"}
OURS: Final = {
    ("chat/chunks.py", "call._asdict"),
    ("cli.py", "setattr(sys, name, open(os.devnull, 'w', encoding='utf-8'))"),
    ("core/errors.py", "each.__traceback__"),
    ("features/usage/naming.py", "dimensions._replace"),
    ("features/usage/rows.py", "usage._replace"),
    ("host/replaced_routes.py", "provider.router"),
    ("lifecycle/certificates.py", "context.check_hostname"),
    ("lifecycle/certificates.py", "context.verify_mode"),
    ("logs.py", "record.args"),
    ("logs.py", "record.exc_info"),
    ("logs.py", "record.exc_text"),
    ("logs.py", "record.msg"),
    ("logs.py", "record.server_process"),
    ("store/sqlite_connection.py", "job.error.__cause__"),
    ("wire/request_cycle.py", "after.rest"),
    ("wire/websocket/steering.py", "target.stop_point.wanted"),
}
"""Objects of this package or of Python, which the rule cannot tell from others."""
NAME: Final = re.compile("_[a-zA-Z][a-zA-Z0-9_]*")
TEST: Final = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def own_names(tree: ast.Module) -> set[str]:
    """Return a module's classes and their attributes: methods, fields, slots, and what they set in `self`."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(each.name)
                elif isinstance(each, ast.AnnAssign):
                    found.add(ast.unparse(each.target))
                elif isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
                    found |= set(ast.literal_eval(each.value))
    return found


def from_uvicorn(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from uvicorn."""
    return {
        alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "uvicorn"
        for alias in node.names
    }


def reached(tree: ast.Module, path: str) -> Iterator[str]:
    """Yield what a module uses, assigns or extends of other packages, as it is written there."""
    own, is_near, bases = own_names(tree), path.startswith(NEAR), from_uvicorn(tree)
    for node in nodes(tree):
        match node:
            case ast.Attribute(value=value, attr=name):
                is_assigned = isinstance(node.ctx, ast.Store) and (is_near or name.startswith("__"))
                if (is_assigned or NAME.fullmatch(name)) and not _is_own(value, name, own):
                    yield ast.unparse(node)
            case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Name())) if _sets_other(node):
                yield ast.unparse(node)
            case ast.Constant(value=str(name)) if is_near and NAME.fullmatch(name) and name not in own:
                yield name
            case ast.ImportFrom(level=0, names=names):
                yield from (alias.name for alias in names if NAME.fullmatch(alias.name))
            case ast.ClassDef(bases=parents):
                yield from (base for base in map(ast.unparse, parents) if base in bases)


def _is_own(holder: ast.expr, name: str, own: set[str]) -> bool:
    """Return whether an attribute is one of this module's classes, or of Python."""
    return ast.unparse(holder) in {"self", "cls", "super()", *STANDARD} or name in own


def _sets_other(call: ast.Call) -> bool:
    return ast.unparse(call.func) in SETTERS and ast.unparse(call.args[0]) != "self"


@cache
def found() -> set[tuple[str, str]]:
    modules = [(tree, path.relative_to(PACKAGE).as_posix()) for path, tree in trees(PACKAGE).items()]
    return {(path, what) for tree, path in modules for what in reached(tree, path)} - OURS


def rows() -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Return the module, what it reaches for, and the tests of each row of the page."""
    listed = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            place, _, tests = line.strip("| ").split(" | ")
            module, *what = re.findall("`([^`]+)`", place)
            listed.append((module, what, TEST.findall(tests)))
    return listed


def test_every_place_is_listed() -> None:
    listed = {(module, each) for module, what, _ in rows() for each in what}
    assert found() - listed == set(), "this package reaches into other packages where the page does not say so"


@pytest.mark.parametrize(("module", "what", "tests"), rows(), ids=lambda value: str(value)[:40])
def test_listed_place_and_its_tests_exist(module: str, what: list[str], tests: list[tuple[str, str]]) -> None:
    text = (PACKAGE / module).read_text()
    written = found() | {(module, each) for each in what if re.search(rf"\b{re.escape(each)}\b", text)}
    assert what
    assert {(module, each) for each in what} <= written
    assert tests
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        ("core/x.py", "other._secret", ["other._secret"]),
        ("core/x.py", "other._secret = 1", ["other._secret"]),
        ("core/x.py", "other.name = 1", []),
        ("host/x.py", "other.name = 1", ["other.name"]),
        ("host/x.py", "self.name = 1", []),
        ("core/x.py", "kind.__call__ = f", ["kind.__call__"]),
        ("core/x.py", "setattr(kind, name, f)", ["setattr(kind, name, f)"]),
        ("host/x.py", "getattr(kind, '_secret')", ["_secret"]),
        ("host/x.py", "class A:\n    __slots__ = ('_a',)\n    def f(self, other): return other._a", []),
        ("core/x.py", "from host.stack import _start", ["_start"]),
        ("core/x.py", "from .stack import _start", []),
        ("host/x.py", "from uvicorn.server import Server\nclass Own(Server): pass", ["Server"]),
    ],
)
def test_rule_finds_what_reaches_into_other_packages(path: str, code: str, expected: list[str]) -> None:
    assert list(reached(ast.parse(code), path)) == expected
