"""The wheels in empty environments, without pins: every installed Python with every host.

A Python version that is not installed is reported at the beginning and skipped.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from tests.support.snippet_programs import INSTALL as INSTALL_BLOCK
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.terminal import Terminal
from tests.support.upstream import UpstreamProcess
from tests.support.wire import Wire, output_text
from tests.wheels.pythons import FOUND

INSTALL: Final = blocks()[INSTALL_BLOCK]
EXTRAS: Final[dict[Host, str]] = {"llama_stack": "llama-stack", "ogx": "ogx"}
PASTED: Final[list[tuple[str, Host]]] = list(
    islice(zip(cycle(FOUND), cycle(EXTRAS), strict=False), max(len(FOUND), len(EXTRAS)))
)
"""The Pythons and hosts of the documented command: each Python, and each host in turn.

pip takes minutes for each. The test of the wheels has every Python with every host.
"""
PACKAGES: Final = ["llama_stack_gpt_oss", "llama_stack_responses"]
"""What a release has."""
WRONG_MCP: Final[dict[Host, str]] = {"llama_stack": "mcp>=2", "ogx": "mcp<2"}


def uv(*arguments: str | Path) -> None:
    """Run uv without this process's Python variables, and check that it succeeds."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel of this package."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamProcess]:
    """The model server."""
    with UpstreamProcess(tmp_path_factory.mktemp("upstream") / "upstream.log") as process:
        yield process


def test_release_is_what_an_index_takes(tmp_path: Path) -> None:
    """The wheels are built from the sdists, as for a user of another platform, and are the same."""
    built = tmp_path / "dist"
    for folder in (REPOSITORY, REPOSITORY / "providers" / "gpt_oss"):
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(built)], cwd=folder, check=True)
    assert sorted(each.name.split("-")[0] for each in built.glob("*.whl")) == PACKAGES
    uv("tool", "run", "twine", "check", "--strict", *built.iterdir())
    for sdist in built.glob("*.tar.gz"):
        uv("build", "--wheel", "--out-dir", tmp_path / "again", sdist)
    for wheel in built.glob("*.whl"):
        assert names_in(tmp_path / "again" / wheel.name) == names_in(wheel)


def test_wheels_say_what_they_are(wheels: Path, tmp_path: Path) -> None:
    uv("venv", "--python", next(iter(FOUND.values())), tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    [wheel] = wheels.glob("llama_stack_responses-*.whl")
    uv("pip", "install", "--python", python, "--no-deps", wheel)
    program = (
        "import json; from importlib.metadata import distribution; from importlib.resources import files\n"
        "found = distribution('llama-stack-responses')\n"
        "print(json.dumps([found.version, found.metadata.get_all('Classifier'), found.metadata.get_all('Project-URL'),"
        " files('llama_stack_responses').joinpath('py.typed').is_file()]))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    version, classifiers, urls, is_typed = json.loads(done.stdout)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (version, classifiers) == (project["version"], project["classifiers"])
    assert urls == [f"{name}, {url}" for name, url in project["urls"].items()]
    assert is_typed
    heading = (REPOSITORY / "CHANGELOG.md").read_text().partition("\n## ")[2].split()[0]
    assert heading == version


def names_in(wheel: Path) -> list[str]:
    """Return the names of the files in a wheel."""
    with ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.mark.parametrize("host", list(EXTRAS))
@pytest.mark.parametrize("version", list(FOUND))
def test_wheel_with_host_extra_in_empty_environment_serves_a_response(
    version: str, host: Host, wheels: Path, upstream: UpstreamProcess, tmp_path: Path
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv("venv", "--python", FOUND[version], tmp_path / "venv")
    [wheel] = wheels.glob("llama_stack_responses-*.whl")
    uv("pip", "install", "--python", python, f"llama-stack-responses[{EXTRAS[host]}] @ {wheel.as_uri()}")
    init = [str(python.with_name("llama-stack-responses")), "init", "starter", str(tmp_path / "stack")]
    output = subprocess.run(init, capture_output=True, text=True, check=True).stdout
    assert "needs the package" not in output
    env = {"INFERENCE_URL": upstream.client.base_url, "PYTHONPATH": ""}
    config = tmp_path / "stack" / "config.yaml"
    with LiveStack(config, env, tmp_path / "state", host=host, python=python) as stack, Wire(stack) as wire:
        assert output_text(wire.create(model="local/echo", input=f"on {version}")) == f"on {version}"
    uv("pip", "install", "--python", python, "--no-deps", WRONG_MCP[host])
    output = subprocess.run([*init, "--force"], capture_output=True, text=True, check=True).stdout
    assert f"pip install 'llama-stack-responses[{EXTRAS[host]}]'" in output


@pytest.mark.parametrize(("version", "host"), PASTED)
def test_documented_command_installs_a_checkout_that_serves(
    version: str, host: Host, upstream: UpstreamProcess, tmp_path: Path
) -> None:
    subprocess.run([FOUND[version], "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env = {**kept, "PATH": os.pathsep.join([str(python.parent), kept["PATH"]])}
    (tmp_path / "shell").mkdir()
    with Terminal(tmp_path / "shell", env, {}) as terminal, terminal.pasting(INSTALL) as lines:
        terminal.run(f"cd {REPOSITORY}")
        for each, extra in EXTRAS.items():
            line = f"pip install '.[{extra}]'"
            if each == host:
                lines.run(line)
            else:
                lines.leave_out(line, "the hosts cannot share an environment")
    stack = {"INFERENCE_URL": upstream.client.base_url, "PYTHONPATH": ""}
    with LiveStack(STARTER, stack, tmp_path / "state", host=host, python=python) as live, Wire(live) as wire:
        assert output_text(wire.create(model="local/echo", input="installed")) == "installed"
