"""`make serve` from a clean checkout: its summary when it runs, and one sentence for each error."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.forks import Forks
from tests.support.process import Child, free_port
from tests.support.stack import READY_SECONDS, REPOSITORY
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web

DEMO = [sys.executable, str(REPOSITORY / "demo" / "demo.py")]
SERVE = [sys.executable, str(REPOSITORY / "demo" / "serve.py")]
READ = (
    "INFERENCE_",
    "LLAMA_STACK_",
    "STATE_DIR",
    "RESPONSES_SECRET",
    "WEB_SEARCH",
    "SEARXNG",
    "TAVILY",
    "BRAVE",
    "FINISH_SECONDS",
    "CONTAINERS_DIR",
    "CODE_PACKAGES",
    "FILE_SEARCH",
    "EMBEDDING_",
    "UNAVAILABLE_TOOLS",
    "ALLOWED_NETWORKS",
    "WORKERS",
)
IMPORTS: Final = ("openai", "environment", "llama_stack_openai_chat.config", "processes", "stack", "terminal", "tools")
"""What `serve.py` imports: each run takes more than two seconds of processor time for it, unless it is forked."""
MODEL_LISTS: Final = {
    "html": (
        Answer(b"<html>Hello</html>", headers={"content-type": "text/html"}),
        "answers with no list of models: check",
    ),
    "list": (Answer(b"[1]", headers={"content-type": "application/json"}), "answers with no list of models: check"),
    "cut": (
        Answer(b'{"data": [', headers={"content-type": "application/json"}),
        "answers with no list of models: check",
    ),
    "nameless": (
        Answer(b'{"data": [{"name": "x"}]}', headers={"content-type": "application/json"}),
        "lists no model. Put",
    ),
    "missing": (
        Answer(b"not found", 404),
        "has no list of models (status 404): check INFERENCE_URL, which mostly ends with",
    ),
}
"""Answers of model servers, and what the program prints for each."""


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """Return this process's environment where `changes` and a state folder are all that the program reads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(READ)}
    return {**kept, "STATE_DIR": str(folder / "state"), "LLAMA_STACK_PORT": str(free_port()), **changes}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes of `make serve` that have its imports."""
    with Forks(Path(SERVE[1]), IMPORTS, os.environ, tmp_path_factory.mktemp("forks") / "log") as forks:
        yield forks


def refusal(forks: Forks, env: dict[str, str], folder: Path) -> str:
    """Return the only line that `make serve` prints before it ends with status 1."""
    child = forks.start(SERVE[1:], log=folder / "serve.log", env=env, cwd=folder)
    assert child, forks.refusals
    try:
        wait_until(lambda: child.returncode is not None)
    finally:
        child.kill()
    assert child.returncode == 1
    [line] = child.log.read_text().strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        (
            "RESPONSES_SECRET",
            "abc",
            "RESPONSES_SECRET is not a secret of 32 bytes in base64. Make one with: openssl rand -base64 32",
        ),
        ("RESPONSES_SECRET", "YWJj", "RESPONSES_SECRET is not a secret of 32 bytes"),
        ("RESPONSES_SECRET", "schlüssel", "RESPONSES_SECRET is not a secret of 32 bytes"),
        ("WEB_SEARCH", "google", "WEB_SEARCH is 'google'; it can be 'ddgs', or be left out."),
        ("RESPONSES_SECRET_2", "abc", "RESPONSES_SECRET_2 is not a secret of 32 bytes"),
        (
            "ALLOWED_HOSTS",
            "http://x/",
            "ALLOWED_HOSTS has 'http://x/'; it lists host names such as responses.example.com, without a scheme or a "
            "port.",
        ),
        (
            "ALLOWED_ORIGINS",
            "foo",
            "ALLOWED_ORIGINS has 'foo'; it lists origins such as https://app.example.com, without a path.",
        ),
        ("UNAVAILABLE_TOOLS", "skip", "UNAVAILABLE_TOOLS is 'skip'; it can be 'refuse' or 'omit', or be left out."),
        ("ALLOWED_NETWORKS", "loopback,mine", "ALLOWED_NETWORKS has 'mine'; it lists networks such as loopback,10."),
        (
            "CODE_PACKAGES",
            "numpy,-r x",
            "CODE_PACKAGES has '-r x'; it lists names of packages such as numpy,pandas",
        ),
        (
            "EMBEDDING_MODELS",
            "nomic",
            "EMBEDDING_MODELS has 'nomic'; it lists models with the length of their vectors, as",
        ),
        ("FILE_SEARCH", "e5", "FILE_SEARCH is 'e5'; it can be 'local', or be left out."),
        ("SEARXNG_URL", "nowhere", "SEARXNG_URL is 'nowhere'; it must be of the form http://HOST:PORT."),
        ("FINISH_SECONDS", "soon", "FINISH_SECONDS is 'soon'; it must be a number of seconds, 0 or more."),
        ("FINISH_SECONDS", "-1", "FINISH_SECONDS is '-1'; it must be a number of seconds, 0 or more."),
        ("CONTAINERS_DIR", "/proc/containers", "CONTAINERS_DIR is /proc/containers, where nothing can be written: No"),
        ("STATE_DIR", "/proc/state", "STATE_DIR is /proc/state, where nothing can be written: No"),
        ("INFERENCE_URL", "localhost", "INFERENCE_URL is 'localhost'; it must begin with http:// or https://."),
        ("INFERENCE_URL", "http://", "INFERENCE_URL is 'http://'; it must be of the form https://HOST:PORT/PATH,"),
        ("INFERENCE_URL", "http://127.0.0.1:99999/v1", "INFERENCE_URL is 'http://127.0.0.1:99999/v1'; it must be of"),
        ("INFERENCE_API_KEY", "schlüssel", "INFERENCE_API_KEY has characters that a header cannot have."),
        ("LLAMA_STACK_PORT", "80", "LLAMA_STACK_PORT is '80'; it must be a number from 1024 to 65535."),
        ("WORKERS", "0", "WORKERS is '0'; it must be a number from 1 to 64."),
        ("WORKERS", "two", "WORKERS is 'two'; it must be a number from 1 to 64."),
    ],
)
def test_invalid_setting_is_reported_in_one_sentence(
    forks: Forks, tmp_path: Path, variable: str, value: str, expected: str
) -> None:
    assert refusal(forks, environment(tmp_path, **{variable: value}), tmp_path).startswith(expected)


def test_demo_reports_an_invalid_setting_as_serve_does(forks: Forks, tmp_path: Path) -> None:
    env = environment(tmp_path, WEB_SEARCH="google")
    ran = subprocess.run(DEMO, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (ran.returncode, ran.stderr.strip()) == (1, refusal(forks, env, tmp_path))


def test_port_in_use_is_reported_in_one_sentence(forks: Forks, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(forks, environment(tmp_path, LLAMA_STACK_PORT=str(port)), tmp_path)
    assert line == f"Port {port} is taken; choose another: make serve LLAMA_STACK_PORT=8400"


def test_second_of_two_that_start_at_once_says_that_the_port_is_taken(forks: Forks, tmp_path: Path) -> None:
    env = environment(tmp_path, INFERENCE_URL="http://127.0.0.1:9/v1")
    started = [forks.start(SERVE[1:], log=tmp_path / f"{each}.log", env=env, cwd=tmp_path) for each in ("a", "b")]
    children = [child for child in started if child]
    assert len(children) == 2, forks.refusals
    try:
        wait_until(lambda: any("Ctrl-C ends it." in child.log.read_text() for child in children))
        [refused] = [child for child in children if child.returncode is not None]
        [running] = [child for child in children if child.returncode is None]
        assert refused.returncode == 1
        port = env["LLAMA_STACK_PORT"]
        expected = f"Port {port} is taken; choose another: make serve LLAMA_STACK_PORT=8400"
        assert refused.log.read_text().strip() == expected
        shown = re.search(r"^Its log: (.+)$", running.log.read_text(), re.MULTILINE)
        assert shown
        running.signal(signal.SIGINT)
        wait_until(lambda: running.returncode is not None)
    finally:
        for child in children:
            child.kill()
    [log] = (tmp_path / "state" / "logs").iterdir()
    assert str(log) == shown[1]
    assert log.stat().st_size, "it is kept"


def serving(child: Child) -> set[int]:
    """Return the processes that have started a server for `make serve`."""
    shown = re.search(r"^Its log: (.+)$", child.log.read_text(), re.MULTILINE)
    assert shown
    log = Path(shown[1]).read_text()
    assert "Traceback" not in log
    return {int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", log)}


def test_running_server_lists_its_tools_and_reports_a_rejected_api_key(tmp_path: Path) -> None:
    with Web() as model_server:
        model_server.answer_all = lambda _: Answer(b'{"error": {"message": "Incorrect API key provided"}}', 401)
        url = model_server.url("/v1")
        env = environment(tmp_path, INFERENCE_URL=url, WEB_SEARCH="ddgs", WORKERS="2")
        child = Child(SERVE, log=tmp_path / "serve.log", env=env, cwd=tmp_path)
        try:
            child.wait_ready(lambda: "Ctrl-C ends it." in child.log.read_text() or None, seconds=READY_SECONDS)
            wait_until(lambda: len(serving(child)) == 2)
            child.signal(signal.SIGINT)
            wait_until(lambda: child.returncode is not None)
        finally:
            child.kill()
    assert child.returncode == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in serving(child))
    output = child.log.read_text()
    assert f"The model server at {url} refuses the key (status 401): set INFERENCE_API_KEY to the right one." in output
    tools = dict(re.findall(r"^  (\w+) +(on|off)\b", output, re.MULTILINE))
    assert (tools["web_search"], tools["mcp"], tools["file_search"]) == ("on", "on", "off")
    assert "code_interpreter" in tools
    assert "Traceback" not in output


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """The lines that `serve.listed_model` prints for each of `MODEL_LISTS`, and the name that it returns."""
    program = "import sys, serve\nfor each in sys.argv[1:]: print(serve.listed_model(each), end='\\0')"
    with Web() as model_server:
        model_server.answer_all = lambda request: MODEL_LISTS[request.path.split("/")[1]][0]
        urls = [model_server.url(f"/{each}/v1") for each in MODEL_LISTS]
        ran = subprocess.run(
            [sys.executable, "-c", program, *urls],
            cwd=REPOSITORY / "demo",
            env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    parts = ran.stdout.split("\0")[:-1]
    return {name: part.strip().splitlines() for name, part in zip(MODEL_LISTS, parts, strict=True)}


@pytest.mark.parametrize("name", MODEL_LISTS)
def test_address_without_a_list_of_models_is_reported_in_one_sentence(printed: dict[str, list[str]], name: str) -> None:
    sentence, model = printed[name]
    assert MODEL_LISTS[name][1] in sentence
    assert model == "local/MODEL"
