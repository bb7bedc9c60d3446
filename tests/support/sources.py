"""The syntax trees of the code, which a process of the tests reads once."""

import ast
import gc
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.memory import no_garbage_collection


@cache
def trees(folder: Path) -> Mapping[Path, ast.Module]:
    """Return the trees of the modules below a folder, in the order of their paths.

    They have half a million objects: garbage collections that go through them would take longer than to read them.
    """
    with no_garbage_collection():
        found = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
        gc.freeze()
    return found


@cache
def nodes(tree: ast.Module) -> Sequence[ast.AST]:
    """Return all nodes of a module that `trees` has read. To find them takes longer than what most tests do with them."""
    return [*ast.walk(tree)]
