"""The tutorial "Build an agent", word by word: its commands in their order, its files, and the page in a browser.

A scripted model server plays the model. The MCP server, the sandbox, the Agents SDK and the restarts are real.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.demo.checkout import LAST, interrupt
from tests.support.browser import Browser
from tests.support.clients import installed
from tests.support.process import Child, free_port
from tests.support.snippets import blocks, substituted
from tests.support.stack import READY_SECONDS
from tests.support.terminal import Terminal, wait_for_line
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

PAGE: Final = {
    name.partition(", ")[2]: block for name, block in blocks().items() if name.startswith("docs/tutorial.md,")
}
FILES: Final = {
    "shop.py": "3. Write a tool, python",
    "agent.py": "4. Write the agent, python",
    "report.py": "7. Let it write a report, python",
}
COMMANDS: Final = (
    "1. Start the server, console",
    "2. Begin with an empty folder, console",
    "3. Write a tool, console",
    "4. Write the agent, console",
    "5. Draw a chart, console",
    "6. Restart the server, console",
    "7. Let it write a report, console",
)
SHOWN: Final = ("4. Write the agent, text",)
SERVE: Final = PAGE["1. Start the server, console"]
SUM: Final = "print(15 + 12 + 18 + 22 + 31 + 45)"
CHART: Final = """
import matplotlib.pyplot as plt
plt.bar(["January", "February", "March", "April", "May", "June"], [15, 12, 18, 22, 31, 45])
plt.savefig("maps.png")
"""
SALES: Final = {"January": 15, "February": 12, "March": 18, "April": 22, "May": 31, "June": 45}
REPLIES: Final = (
    reply(tool_call(0, "c1", "shop__sales", '{"kind": "maps"}')),
    reply(tool_call(0, "c2", "python", json.dumps({"code": SUM}))),
    reply(text("You sold ", "143 maps.")),
    reply(tool_call(0, "c3", "python", json.dumps({"code": CHART}))),
    reply(text("The chart ", "is maps.png.")),
    reply(text("How many maps ", "you sold.")),
    reply(tool_call(0, "c4", "shop__sales", '{"kind": "novels"}')),
    reply(text("Novels sell ", "worst in March."), hold=1),
    reply(text("Novels sell ", "best in June.")),
)
HELD: Final = 8
"""The number of the request whose answer is held until the server has been restarted."""


def test_every_block_of_the_tutorial_is_used_here() -> None:
    assert sorted(PAGE) == sorted([*FILES.values(), *COMMANDS, *SHOWN])


class Reader:
    """Someone who follows the tutorial, with a terminal for each thing that runs.

    Attributes:
        upstream: the model server.
        shell: the terminal in the reader's folder.
        root: the server's URL.
    """

    def __init__(self, server: Terminal, upstream: Upstream, folder: Path) -> None:
        self.upstream = upstream
        self.root = f"http://127.0.0.1:{server.env['LLAMA_STACK_PORT']}"
        self._server = server
        self._shop = free_port()
        server.replacements["http://localhost:8000"] = upstream.url
        # An activated environment in which the packages are installed.
        path = os.pathsep.join([str(installed("agents") / "bin"), os.environ["PATH"]])
        env = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"}
        self.shell = Terminal(folder, env, {})

    def serve(self) -> Child:
        """Start the server, in the first terminal."""
        with self._server.pasting(SERVE) as lines:
            child = lines.start("INFERENCE_URL=")
        printed = wait_for_line(child, LAST, READY_SECONDS)
        assert re.search(r"^  code_interpreter +on, in a sandbox with matplotlib", printed, re.MULTILINE), printed
        return child

    def begin(self) -> None:
        """Make the folder, as far as it goes without a package index."""
        with self.shell.pasting(PAGE["2. Begin with an empty folder, console"]) as lines:
            lines.run("mkdir ")
            lines.run("cd ")
            for line in ("python3 -m venv", ". .venv", "pip install"):
                lines.leave_out(line, "needs a package index; the clients of the tests have these packages")

    def write(self, name: str) -> None:
        """Save a file of the tutorial."""
        here = {"http://localhost:8321": self.root, "8765": str(self._shop)}
        self.folder.joinpath(name).write_text(substituted(PAGE[FILES[name]].text, here))

    def start_shop(self) -> None:
        """Start the MCP server, in the third terminal."""
        with self.shell.pasting(PAGE["3. Write a tool, console"]) as lines:
            lines.leave_out(". .venv", "it is active")
            child = lines.start("python shop.py")
        wait_for_line(child, "Uvicorn running", READY_SECONDS)

    def run(self, section: str) -> str:
        """Run the command of a section and return what it prints."""
        with self.shell.pasting(PAGE[f"{section}, console"]) as lines:
            return lines.run("python ")

    @property
    def folder(self) -> Path:
        """The reader's folder."""
        return self.shell.folder / "bookshop"

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the newest chat request."""
        found: list[dict[str, Any]] = self.upstream.requests("NAME")[-1].body["messages"]
        return found


@pytest.fixture
def reader(terminal: Terminal, tmp_path: Path) -> Iterator[Reader]:
    """A reader with an empty folder."""
    folder = tmp_path / "reader"
    folder.mkdir()
    with UpstreamProcess(tmp_path / "upstream.log") as process:
        process.client.script("NAME", REPLIES)
        found = Reader(terminal, process.client, folder)
        with found.shell:
            yield found


@pytest.mark.day(3)
def test_tutorial_works_word_by_word(reader: Reader) -> None:
    server = reader.serve()
    reader.begin()
    for name in FILES:
        reader.write(name)
    reader.start_shop()
    check_answer(reader)
    check_chart(reader)
    interrupt(server)
    server = reader.serve()
    assert reader.run("6. Restart the server") == "How many maps you sold.\n"
    assert reader.messages()[1]["content"] == "How many maps did we sell from January to June?"
    check_report(reader, server)
    check_page(reader)


def check_answer(reader: Reader) -> None:
    """Check that the agent calls the tool of the shop and Python, and that it prints what the tutorial shows."""
    assert reader.run("4. Write the agent") == PAGE["4. Write the agent, text"].text
    results = [each["content"] for each in reader.messages() if each["role"] == "tool"]
    assert json.loads(results[0]) == SALES
    assert "143" in results[1]


def check_chart(reader: Reader) -> None:
    """Check that the chart that the model's code has drawn is in the reader's folder."""
    printed = reader.run("5. Draw a chart")
    assert printed == "[code_interpreter_call]\nThe chart is maps.png.\nsaved files/maps.png\n"
    assert (reader.folder / "files" / "maps.png").read_bytes().startswith(b"\x89PNG\r\n")


def check_report(reader: Reader, server: Child) -> None:
    """Check that a background response goes on without its client and, after a restart, where it was."""
    waiting = reader.shell.start("python report.py")
    reader.upstream.wait_for("NAME", HELD)
    wait_until(lambda: "in_progress" in waiting.log.read_text())
    interrupt(waiting)
    interrupt(server)
    reader.serve()
    assert reader.run("7. Let it write a report").splitlines()[-1] == "Novels sell best in June."
    asked = [each.body["messages"][-1]["role"] for each in reader.upstream.requests("NAME")[HELD - 2 :]]
    assert asked == ["user", "tool", "tool"], "the call before the restart was not repeated"


def check_page(reader: Reader) -> None:
    """Check that the page shows what the tutorial says."""
    conversation = (reader.folder / "conversation.txt").read_text()
    with Browser() as browser, browser.page(reader.root) as page:
        page.goto("/ui")
        page.find(".list-row", "What did I ask you first?")
        page.find(".list-row a", "Draw a bar chart").click()
        page.find(".talk summary", "plt.bar").click()
        page.find(".talk img")
        page.goto(f"/ui/conversations/{conversation}")
        for said in ("How many maps did we sell", "143 maps.", "Novels sell best in June."):
            page.find(".talk", said)
        page.check_quiet()
