"""Console blocks of the documentation, pasted line by line into a shell as a reader does.

with Terminal(folder, env, replacements) as terminal, terminal.pasting(block) as lines:
    lines.run("llama-stack-responses init")        # each line by its beginning, in any order
    server = lines.start("llama stack run")        # one that does not end
    lines.leave_out("vllm serve", "needs a GPU")   # one that cannot run here
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from tests.support.process import GRACE, Child
from tests.support.snippets import Block, substituted
from tests.support.waiting import wait_until

SECONDS: Final = 1800.0
"""Seconds that a command may take that is not interrupted."""
_PROGRAM: Final = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)}))"


class Terminal:
    """A shell whose folder and exported variables last from one line to the next.

    Args:
        folder: its first folder.
        env: its first environment.
        replacements: what stands in the blocks and what is run instead: addresses, ports and ids.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], replacements: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = dict(env)
        self.replacements = dict(replacements)
        self._logs = folder / ".logs"
        self._logs.mkdir()
        self._cwd = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        """Return the terminal."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the commands that do not end, the last first."""
        for child in reversed(self._children):
            child.stop(GRACE)

    @contextmanager
    def pasting(self, block: Block) -> Iterator[PendingLines]:
        """Return the lines of a block, and check at the end that each was run or left out."""
        lines = PendingLines(self, block)
        yield lines
        assert not lines.left, f"lines of the block that were not run: {lines.left}"

    def run(self, line: str) -> str:
        """Run a line that ends, keep what it changes of the shell, check its status and return its output."""
        kept = self._logs / "kept.json"
        keep = f"{shlex.join([sys.executable, '-I', '-c', _PROGRAM])} >{shlex.quote(str(kept))}"
        script = f"set -e -o pipefail\n{line}\n{keep}\n"
        output_file = self._logs / "said.txt"
        with output_file.open("wb") as output:  # no pipe: a daemon would keep it open
            ran = subprocess.run(
                ["bash", "-c", script],
                cwd=self._cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        printed = output_file.read_text(errors="replace")
        assert ran.returncode == 0, f"$ {line}\n{printed}"
        after: dict[str, Any] = json.loads(kept.read_text())
        self._cwd, self.env = Path(after["cwd"]), after["env"]
        return printed

    def start(self, line: str) -> Child:
        """Start a line that does not end by itself."""
        log = self._logs / f"{len(self._children)}.log"
        child = Child(["bash", "-c", line], log=log, env=self.env, cwd=self._cwd)
        self._children.append(child)
        return child


class PendingLines:
    """The lines of a block that are still to be run.

    A line that a backslash continues is one line; a comment is none. What ends with `&` is started.
    """

    def __init__(self, terminal: Terminal, block: Block) -> None:
        command = substituted(block.shell, terminal.replacements).replace("\\\n", " ")
        self.left = [line for line in command.splitlines() if line.strip() and not line.startswith("#")]
        self._terminal = terminal

    def run(self, beginning: str, **replacements: str) -> str:
        """Run the first line that begins so, and return its output."""
        return self._terminal.run(substituted(self._take(beginning), replacements))

    def start(self, beginning: str, **replacements: str) -> Child:
        """Start the first line that begins so."""
        return self._terminal.start(substituted(self._take(beginning), replacements))

    def leave_out(self, beginning: str, reason: str) -> None:
        """Leave out the first line that begins so, for this reason."""
        assert reason
        self._take(beginning)

    def _take(self, beginning: str) -> str:
        found = next((line for line in self.left if line.startswith(beginning)), None)
        assert found is not None, f"no line begins with {beginning!r}: {self.left}"
        self.left.remove(found)
        return found


def wait_for_line(child: Child, text: str, seconds: float) -> str:
    """Wait until a command that does not end has printed this, and return its output."""
    wait_until(lambda: text in child.log.read_text(errors="replace") or child.returncode is not None, seconds)
    output = child.log.read_text(errors="replace")
    assert text in output, output
    return output
