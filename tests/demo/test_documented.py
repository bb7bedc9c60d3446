"""The documented `make` commands with which a newcomer starts, pasted into a shell of a checkout (see `checkout`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import openai
import pytest

from tests.demo.checkout import LAST, interrupt
from tests.support.clients import installed, run
from tests.support.snippet_programs import CODEX_BY_URL, MAKE, QUICKSTART
from tests.support.snippets import blocks
from tests.support.stack import READY_SECONDS
from tests.support.terminal import Terminal, wait_for_line
from tests.support.upstream import UpstreamProcess, reply, text, tool_call

BLOCKS: Final = blocks()
FIVE_MINUTES: Final = "README.md, Five minutes, console"
STEPS: Final = [name for name in QUICKSTART if name.startswith("docs/quickstart.md") and ", 6. " not in name]
"""The steps for which the small model is enough."""
OWN_MODEL_SERVER: Final = ("README.md, Five minutes, console 2", "docs/quickstart.md, 1. Start a server, console")
WITH_FILES: Final = "docs/guides/file-search.md, Try it, console"
WITH_PACKAGES: Final = "docs/guides/code-interpreter.md, Packages, console"


def test_every_make_block_is_pasted_by_a_test_of_this_file() -> None:
    assert {FIVE_MINUTES, *OWN_MODEL_SERVER, WITH_PACKAGES, WITH_FILES} == set(MAKE)


def pasted_python(output: str) -> str:
    """Return the Python program that `make serve` prints."""
    found = re.search(r"^from openai import OpenAI\n.*?^print\(.*?\)\n", output, re.MULTILINE | re.DOTALL)
    assert found, output
    return found[0]


@pytest.mark.day(4)
def test_first_commands_of_readme_hold_a_conversation_and_serve(terminal: Terminal) -> None:
    """The demo leaves no process running.

    The lines that `make serve` prints work too, and the first steps of the quickstart; Ctrl-C ends it in one line.
    """
    with terminal.pasting(BLOCKS[FIVE_MINUTES]) as lines:
        shown = lines.run("make demo")
        assert "resp_" in shown
        assert re.search(r"Look at the conversation at .*http://[^ ]+/ui", shown)
        assert "Traceback" not in shown
        assert started_with(f"STATE_DIR={terminal.env['STATE_DIR']}") == []
        child = lines.start("make serve")
        output = wait_for_line(child, LAST, READY_SECONDS)
    curl = re.search(r"^  curl .*\\\n.*$", output, re.MULTILINE)
    assert curl, output
    assert '"status":"completed"' in terminal.run(curl[0].replace("curl ", "curl -s ")).replace(" ", "")
    assert run_program(terminal, pasted_python(output)).strip()
    for name in STEPS:
        printed = run_program(terminal, BLOCKS[name].text.replace("local/NAME", "local/smollm2-135m")).strip()
        assert printed, name
    assert len(printed.splitlines()) > 1, "the last step prints the call, and an answer"
    interrupt(child)
    [after] = child.log.read_text().partition(LAST)[2].split("\n\n")[1:]
    assert after.splitlines()[0] == "Stopped."
    assert "Traceback" not in after


def started_with(variable: str) -> list[str]:
    """Return the commands of the running processes that were started with this variable."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def run_program(terminal: Terminal, output: str) -> str:
    """Run a Python program of the documentation on the server, and return what it prints."""
    program = output.replace("localhost:8321", f"127.0.0.1:{terminal.env['LLAMA_STACK_PORT']}")
    ran = subprocess.run(
        [sys.executable, "-c", program], env=terminal.env, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", OWN_MODEL_SERVER)
def test_documented_serve_command_uses_another_model_server_and_searches(
    terminal: Terminal, tmp_path: Path, name: str
) -> None:
    with UpstreamProcess(tmp_path / "upstream.log") as upstream, terminal.pasting(BLOCKS[name]) as lines:
        child = lines.start(
            "INFERENCE_URL=", **{"http://localhost:8000": upstream.client.url, "API_KEY=...": "API_KEY=sk-1"}
        )
        output = wait_for_line(child, LAST, READY_SECONDS)
        assert re.search(r"^  web_search +on\b", output, re.MULTILINE)
        request = {"model": "local/echo", "input": "Hello?"}
        url = f"http://127.0.0.1:{terminal.env['LLAMA_STACK_PORT']}/v1/responses"
        answer = httpx.post(url, json=request, timeout=60, trust_env=False).json()
        assert answer["output"][0]["content"][0]["text"] == "Hello?"
        interrupt(child)


def test_documented_serve_command_with_packages_lists_them(terminal: Terminal, tmp_path: Path) -> None:
    with UpstreamProcess(tmp_path / "upstream.log") as upstream, terminal.pasting(BLOCKS[WITH_PACKAGES]) as lines:
        terminal.env["INFERENCE_URL"] = upstream.client.base_url
        child = lines.start("CODE_PACKAGES=")
        output = wait_for_line(child, LAST, READY_SECONDS)
        listed = re.search(r"^  code_interpreter +on, in a sandbox with (.*)$", output, re.MULTILINE)
        assert listed, output
        assert re.fullmatch(r"matplotlib [\d.]+, numpy [\d.]+, pandas [\d.]+", listed[1])
        request = {
            "model": "local/echo",
            "input": "Hello?",
            "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
        }
        url = f"http://127.0.0.1:{terminal.env['LLAMA_STACK_PORT']}/v1/responses"
        assert httpx.post(url, json=request, timeout=60, trust_env=False).status_code == 200
        [sent] = upstream.client.requests("echo")
        assert f"Installed packages: {listed[1]}." in sent.body["tools"][0]["function"]["description"]
        interrupt(child)


PASSAGES: Final = {
    "otters.txt": "Otters sleep on their backs in the water and hold hands, so that they do not drift apart.",
    "invoice.txt": "The invoice has to be paid within thirty days of delivery.",
    "router.txt": "To reset the router, press the small button at its back for ten seconds.",
    "bread.txt": "Bake the bread at 230 degrees for forty minutes, with a bowl of water in the oven.",
    "holiday.txt": "Employees may take up to twenty-six days of holiday a year.",
    "minka.txt": "Our cat is afraid of thunder and hides below the sofa.",
}
ASKED: Final = {
    "How do sea mammals avoid floating away at night?": "otters.txt",
    "When is the bill due?": "invoice.txt",
    "My internet box does not work": "router.txt",
    "How hot is the stove for a loaf?": "bread.txt",
    "vacation of staff": "holiday.txt",
    "What frightens our pet?": "minka.txt",
}
"""Questions that share hardly a word with the passage that answers them."""


def test_documented_serve_command_finds_passages_by_their_meaning(terminal: Terminal, tmp_path: Path) -> None:
    with UpstreamProcess(tmp_path / "upstream.log") as upstream, terminal.pasting(BLOCKS[WITH_FILES]) as lines:
        child = lines.start("INFERENCE_URL=", **{"http://localhost:8000": upstream.client.url})
        output = wait_for_line(child, LAST, READY_SECONDS)
        model = re.search(r"^  file_search +on, with the embedding model (\S+):", output, re.MULTILINE)
        assert model, output
        url = f"http://127.0.0.1:{terminal.env['LLAMA_STACK_PORT']}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=240) as client:
            store = client.vector_stores.create(name="notes", extra_body={"embedding_model": model[1]})
            for name, passage in PASSAGES.items():
                file = client.files.create(file=(name, passage.encode()), purpose="assistants")
                attached = client.vector_stores.files.create(vector_store_id=store.id, file_id=file.id)
                assert attached.status == "completed", attached
            found = {query: best_file(client, store.id, upstream, query) for query in ASKED}
        assert found == ASKED
        interrupt(child)


def best_file(client: openai.OpenAI, store_id: str, upstream: UpstreamProcess, query: str) -> str:
    """Return the name of the file that a response's search finds first."""
    arguments = json.dumps({"queries": [query]})
    upstream.client.script("NAME", [reply(tool_call(0, "c1", "file_search", arguments)), reply(text("Found."))])
    response = client.responses.create(
        model="local/NAME",
        input=query,
        tools=[{"type": "file_search", "vector_store_ids": [store_id]}],
        include=["file_search_call.results"],
    )
    [call] = [item for item in response.output if item.type == "file_search_call"]
    assert call.results
    assert call.results[0].filename
    return call.results[0].filename


def test_codex_works_with_three_line_config(terminal: Terminal, tmp_path: Path) -> None:
    """Codex puts a web search without live access into every request, and this server searches nothing."""
    home = tmp_path / "home" / ".codex"
    home.mkdir(parents=True)
    config = BLOCKS[CODEX_BY_URL].text.replace("localhost:8321", f"127.0.0.1:{terminal.env['LLAMA_STACK_PORT']}")
    (home / "config.toml").write_text(config)
    program = installed("codex") / "node_modules" / ".bin" / "codex"
    with UpstreamProcess(tmp_path / "upstream.log") as upstream:
        upstream.client.script("NAME", reply(text("It ", "snows.")))
        child = terminal.start(f"INFERENCE_URL={upstream.client.base_url} make serve")
        assert re.search(r"^  web_search +off\b", wait_for_line(child, LAST, READY_SECONDS), re.MULTILINE)
        command: list[str | Path] = [program, "exec", "--skip-git-repo-check", "Say hello."]
        ran = run(command, tmp_path, {"HOME": str(home.parent), "CODEX_API_KEY": "none"})
        assert (ran.code, "It snows." in ran.out) == (0, True), ran.errors
        [request] = upstream.client.requests("NAME")
        assert "web_search" not in {tool["function"]["name"] for tool in request.body["tools"]}
        interrupt(child)
