"""Rules of the package's structure, checked on its code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import llama_stack_gpt_oss

ROOT = Path(llama_stack_gpt_oss.__file__).parent
MAX_FUNCTION_LINES = 45
# A kernel is one function: its loops share the registers.
KERNELS = {"linear.py", "attention.py", "experts.py", "head.py", "inputs.py", "sampling.py"}
STANDARD = {
    "array", "bisect", "collections", "contextlib", "dataclasses", "functools", "hashlib", "itertools", "json", "math",
    "mmap", "pathlib", "time", "types", "typing",
}  # fmt: skip
WITHOUT_TORCH = ["cache", "config", "engine", "errors", "progress", "scheduler", "sequence"]
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a module imports; relative imports by the folder that they lead to."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1].relative_to(ROOT.parent)
            yield ".".join((*folder.parts, *(node.module or "").split(".")))


@pytest.mark.parametrize("path", sorted((ROOT / "engine").rglob("*.py")), ids=lambda path: path.name)
def test_engine_imports_only_torch_triton_and_standard_library(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] in {*STANDARD, "torch", "triton"} or name.startswith("llama_stack_gpt_oss.engine"), (
            name
        )


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_bookkeeping_modules_do_not_import_torch(name: str) -> None:
    assert not {"torch", "triton"} & {found.split(".")[0] for found in imports(ROOT / "engine" / f"{name}.py")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_host_folder_imports_host(path: Path) -> None:
    for name in imports(path):
        if name.split(".")[0] in ("llama_stack", "llama_stack_api", "ogx", "ogx_api"):
            assert path.is_relative_to(ROOT / "host")
        if name.startswith("llama_stack_gpt_oss.host"):
            assert path.is_relative_to(ROOT / "host") or path.name == "provider.py"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_within_the_package_are_relative(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] != ROOT.name


@pytest.mark.parametrize("path", [path for path in MODULES if path.name not in KERNELS], ids=lambda path: path.name)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node) is not None
            first = node.body[1 if documented and len(node.body) > 1 else 0]
            assert (node.end_lineno or 0) - first.lineno < MAX_FUNCTION_LINES, node.name
