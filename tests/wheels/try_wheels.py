"""The wheels in empty environments, without pins: every installed Python with every host.

A Python version that is not installed is reported at the beginning and skipped.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from packaging.utils import canonicalize_name

from tests.support.snippet_programs import GET, INSTALL, PINNED, WITHOUT_ORACLE
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.terminal import Terminal
from tests.support.upstream import UpstreamProcess
from tests.support.wire import Wire, output_text
from tests.wheels.pythons import FOUND

DOCUMENTED: Final = blocks()
REQUIREMENTS: Final = REPOSITORY / "templates" / "deploy" / "requirements.txt"
RELEASE: Final = os.environ.get("RELEASE")
"""The folder of the wheels of a release; without it, the wheels are built."""
DAY: Final = date.today().toordinal()
OF_TODAY: Final = list(FOUND)[DAY % len(FOUND)]
"""The Python of the ways without Oracle's packages: each one in turn, by the date. They differ in the packages only."""
ORACLE: Final = {"oci", "oracledb"}
VALIDATE: Final = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text())
sys.exit(f"{error}" if error else 0)
"""
EXTRAS: Final[dict[Host, str]] = {"llama_stack": "llama-stack", "ogx": "ogx"}
PAIRS: Final[list[tuple[str, Host]]] = list(
    islice(zip(cycle(FOUND), cycle(EXTRAS), strict=False), max(len(FOUND), len(EXTRAS)))
)
PASTED: Final = PAIRS if RELEASE else [PAIRS[DAY % len(PAIRS)]]
"""The Pythons and hosts of the documented command: each Python, and each host in turn; without a release one by the date.

pip takes far longer than uv, with which the test of the wheels has every Python with every host.
"""
PACKAGES: Final = ["llama_stack_gpt_oss", "llama_stack_responses"]
"""What a release has."""
WRONG_MCP: Final[dict[Host, str]] = {"llama_stack": "mcp>=2", "ogx": "mcp<2"}


def environment() -> dict[str, str]:
    """Return the environment without this process's Python variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def run(*command: str | Path, cwd: Path = REPOSITORY) -> str:
    """Run a command without this process's Python variables, check that it succeeds, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uv(*arguments: str | Path) -> str:
    """Run uv and return its output."""
    return run(sys.executable, "-m", "uv", *arguments)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheels."""
    if RELEASE:
        return REPOSITORY / RELEASE
    folder = tmp_path_factory.mktemp("wheels")
    run("scripts/build-wheels", folder)
    return folder


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamProcess]:
    """The model server."""
    with UpstreamProcess(tmp_path_factory.mktemp("upstream") / "upstream.log") as process:
        yield process


@pytest.mark.extended
def test_release_is_what_an_index_takes(tmp_path: Path) -> None:
    """The wheels are built from the sdists, as for a user of another platform, and are the same."""
    built = tmp_path / "dist"
    run("scripts/release", built)
    assert sorted(each.name.split("-")[0] for each in built.glob("*.whl")) == PACKAGES
    listed = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert listed == {each.name for each in built.iterdir()} - {"SHA256SUMS"}
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=built)
    [bill] = built.glob("*.cdx.json")
    check_bill_of_materials(bill)
    for sdist in built.glob("*.tar.gz"):
        uv("build", "--wheel", "--out-dir", tmp_path / "again", sdist)
    for wheel in built.glob("*.whl"):
        assert names_in(tmp_path / "again" / wheel.name) == names_in(wheel)


def check_bill_of_materials(file: Path) -> None:
    """Check that an SBOM is valid, and has what the image installs and nothing of this machine."""
    run(REPOSITORY / ".venv-release" / "bin" / "python", "-c", VALIDATE, file)
    bill = json.loads(file.read_text())
    found = {(canonicalize_name(each["name"]), each["version"]) for each in bill["components"]}
    pins = [line.split()[0].split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    assert found == {(name, version) for name, version in pins}
    assert bill["metadata"]["component"]["name"] == "llama-stack-responses"
    licensed = [each["name"] for each in bill["components"] if each.get("licenses")]
    assert len(licensed) > 0.9 * len(pins)
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert any(ref.startswith("starlette") for ref in needs[bill["metadata"]["component"]["bom-ref"]])
    assert str(REPOSITORY) not in file.read_text()


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


@pytest.mark.whole_run  # pip takes a minute for what uv installs in seconds
@pytest.mark.parametrize(("version", "host"), PASTED)
def test_documented_command_installs_a_wheel_that_serves(
    version: str, host: Host, wheels: Path, upstream: UpstreamProcess, tmp_path: Path
) -> None:
    subprocess.run([FOUND[version], "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    with shell(python, tmp_path, wheels) as terminal, terminal.pasting(DOCUMENTED[INSTALL]) as lines:
        for each, extra in EXTRAS.items():
            line = f"pip install 'llama-stack-responses[{extra}]'"
            if each == host:
                lines.run(line)
            else:
                lines.leave_out(line, "the hosts cannot share an environment")
    check_server(python, host, upstream, tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("version", [OF_TODAY])
def test_documented_override_leaves_out_the_packages_for_oracle(
    version: str, wheels: Path, upstream: UpstreamProcess, tmp_path: Path
) -> None:
    uv("venv", "--python", FOUND[version], tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    with shell(python, tmp_path, wheels) as terminal, terminal.pasting(DOCUMENTED[WITHOUT_ORACLE]) as lines:
        terminal.env["VIRTUAL_ENV"] = str(tmp_path / "venv")
        lines.run("printf")
        lines.run("uv pip install")
    assert ORACLE.isdisjoint(installed(python))
    check_server(python, "llama_stack", upstream, tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("version", [OF_TODAY])
def test_documented_list_with_hashes_installs_without_the_packages_for_oracle(
    version: str, wheels: Path, upstream: UpstreamProcess, tmp_path: Path
) -> None:
    """It is the list of the image."""
    python = tmp_path / "shell" / "stack" / "bin" / "python"
    with shell(python, tmp_path, wheels) as terminal, terminal.pasting(DOCUMENTED[PINNED]) as lines:
        lines.run("llama-stack-responses init deploy")
        lines.run("python3 -m venv", python3=FOUND[version])
        lines.run("stack/bin/pip install --no-deps --require-hashes")
        lines.run("stack/bin/pip install --no-deps llama-stack-responses")
    assert ORACLE.isdisjoint(installed(python))
    check_server(python, "llama_stack", upstream, tmp_path)


@contextmanager
def shell(python: Path, folder: Path, wheels: Path) -> Iterator[Terminal]:
    """Return a shell with the programs of this Python, and those of the tests, that finds the wheels as documented."""
    kept = environment()
    (folder / "shell").mkdir()
    path = os.pathsep.join([str(python.parent), kept["PATH"], str(Path(sys.executable).parent)])
    # A server compiles what it imports; pip would compile all that it installs (with PIP_NO_COMPILE=1 too).
    env = {**kept, "PATH": path, "PIP_COMPILE": "0"}
    with Terminal(folder / "shell", env, {"$PWD/dist": str(wheels)}) as terminal:
        with terminal.pasting(DOCUMENTED[GET]) as lines:
            lines.leave_out("make wheels", "its script has built them")
            lines.run("export")
        yield terminal


def installed(python: Path) -> set[str]:
    """Return the names of the packages that are installed."""
    return {each["name"] for each in json.loads(uv("pip", "list", "--format", "json", "--python", python))}


def check_server(python: Path, host: Host, upstream: UpstreamProcess, folder: Path) -> None:
    """Check that a stack of the starter template starts and answers."""
    stack = {"INFERENCE_URL": upstream.client.base_url, "PYTHONPATH": ""}
    with LiveStack(STARTER, stack, folder / "state", host=host, python=python) as live, Wire(live) as wire:
        assert output_text(wire.create(model="local/echo", input="installed")) == "installed"
