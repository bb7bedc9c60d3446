"""The documented commands of measurements, which take minutes and are not run, have the options that they name.

The measurements compare the server with llama-stack and import it, so this is no test of both hosts.
"""

import re
import shlex
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from typing import Final

import pytest

from tests.support.snippet_programs import NOT_RUN
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY

BLOCKS: Final = blocks()
MAKEFILE: Final = (REPOSITORY / "Makefile").read_text()
RECIPE: Final = re.compile(r"^(bench[a-z-]*):.*\n.*-m (benchmarks\.\w+) \$\(BENCH\)$", re.MULTILINE)


@cache
def options(module: str) -> set[str]:
    """Return the options in the help of a program."""
    described = StringIO()
    program = import_module(module)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(described):
        patch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit, match="0"):
            program.main()
    return set(re.findall(r"--[a-z-]+", described.getvalue()))


@pytest.mark.parametrize("name", [name for name in NOT_RUN if name.startswith("docs/explanation/performance.md")])
def test_documented_measurements_have_the_named_options(name: str) -> None:
    """`make TARGET BENCH="..."` and `python -m benchmarks.NAME ...` take the options that the block gives them."""
    recipes = dict(RECIPE.findall(MAKEFILE))
    for line in BLOCKS[name].shell.splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            module, words = recipes[words[1]], shlex.split(words[2].removeprefix("BENCH=")) if words[2:] else []
        else:
            module = words[2]
        given = {word for word in words if word.startswith("--")}
        assert given <= options(module), line
