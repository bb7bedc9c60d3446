"""The wheel outside the checkout: its command, the configuration that it writes, and a server that uses it."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import pytest

from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream
from tests.support.wire import Wire, output_text

# `tests/wheels` uses the wheel on both hosts.
pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).parents[2]
HOST_COMMANDS = {"llama_stack": "llama", "ogx": "ogx"}
RUNS = {"llama_stack": "llama stack run {}", "ogx": "ogx run {} --insecure"}
MCP_NEEDED = {
    "llama_stack": ("llama-stack needs the package mcp in version 1", "llama-stack", "mcp>=1.23,<2"),
    "ogx": ("ogx needs the package mcp in version 2", "ogx", "mcp>=2.3,<3"),
}
DIGITS = "01234567"


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """An environment with the package installed from its wheel."""

    python: Path
    cwd: Path
    packages: Path

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the package's command."""
        return call(self.python.with_name("llama-stack-responses"), *arguments, cwd=self.cwd)

    def refused(self, *arguments: str) -> str:
        """Run the command, check that it fails with one line, and return that line."""
        done = self.command(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        return line


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the environment variables that make Python find the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)


def done(*command: str | Path, cwd: Path) -> str:
    """Run a command, check that it succeeds, and return its output."""
    ended = call(*command, cwd=cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def installed(host: Host, tmp_path_factory: pytest.TempPathFactory) -> InstalledPackage:
    """The wheel in a new environment, which sees all packages of this one except the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=REPOSITORY)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    done(sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=folder)
    # A folder from a .pth file comes after the environment's own, and .pth files in that folder are ignored.
    own = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder))
    (own / "packages.pth").write_text(sysconfig.get_path("purelib"))
    # The host's command that is installed here, run by the new environment's Python.
    command = HOST_COMMANDS[host]
    _, _, script = Path(sys.executable).with_name(command).read_text().partition("\n")
    python.with_name(command).write_text(f"#!{python}\n{script}")
    python.with_name(command).chmod(0o755)
    return InstalledPackage(python, folder, own)


@pytest.mark.extended
def test_configuration_written_by_the_wheel_starts_a_server(
    host: Host, installed: InstalledPackage, upstream: Upstream, tmp_path: Path
) -> None:
    where = done(installed.python, "-c", "import llama_stack_responses as it; print(it.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.cwd)
    completed = installed.command("init", "starter", str(tmp_path / "my stack"))
    config = tmp_path / "my stack" / "config.yaml"
    assert completed.stdout.endswith(f"Start it with:\n\n  {RUNS[host].format(f"'{config}'")}\n")
    # A key of digits cannot come from the environment, because the host converts it to a number.
    config.write_text(config.read_text().replace("${env.INFERENCE_API_KEY:=}", f'"{DIGITS}"'))
    env = {"INFERENCE_URL": upstream.base_url, "PYTHONPATH": ""}
    with LiveStack(config, env, tmp_path / "state", host=host, python=installed.python) as stack, Wire(stack) as wire:
        assert output_text(wire.create(model="local/echo", input="from a wheel")) == "from a wheel"
    assert upstream.requests("echo")[0].headers["authorization"] == f"Bearer {DIGITS}"


def test_init_gpt_oss_without_its_package_names_the_package(
    host: Host, installed: InstalledPackage, tmp_path: Path
) -> None:
    output = installed.command("init", "gpt-oss", str(tmp_path)).stdout
    assert (
        "needs the package llama-stack-gpt-oss, which is not installed here: pip install llama-stack-gpt-oss" in output
    )
    assert f"Then start it with:\n\n  {RUNS[host].format(tmp_path / 'config.yaml')}" in output


def test_unsupported_mcp_version_is_reported_in_one_sentence(
    host: Host, installed: InstalledPackage, tmp_path: Path
) -> None:
    other = installed.packages / "mcp-9.1.0.dist-info"
    other.mkdir()
    try:
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mcp\nVersion: 9.1.0\n")
        completed = installed.command("init", "starter", str(tmp_path))
        starts = call(installed.python, "-c", f"import {host}, llama_stack_responses.provider", cwd=tmp_path)
    finally:
        rmtree(other)
    needs, extra, requirement = MCP_NEEDED[host]
    sentence = (
        f"{needs}, and version 9.1.0 is installed: "
        f"pip install 'llama-stack-responses[{extra}]', or pip install '{requirement}'."
    )
    assert (completed.returncode, completed.stdout.splitlines()[1]) == (0, sentence)
    assert (starts.returncode, starts.stderr.splitlines()[-1]) == (1, f"RuntimeError: {sentence}")


def test_wheel_has_license_author_docs_and_no_relative_links(installed: InstalledPackage) -> None:
    [metadata] = installed.packages.glob("llama_stack_responses-*.dist-info/METADATA")
    head, _, description = metadata.read_text().partition("\n\n")
    assert {
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Project-URL: API reference, https://platform.openai.com/docs/api-reference/responses",
        "Project-URL: Llama Stack, https://pypi.org/project/llama-stack/",
        "Project-URL: OGX, https://pypi.org/project/ogx/",
        "Description-Content-Type: text/markdown",
    } <= set(head.splitlines())
    assert "\nAuthor: " in head
    assert re.findall(r"\]\((?!https://)", description) == []
    assert "![" not in description
    assert "A response on the built-in page" not in description
    named = set(re.findall(r"`docs/([a-z/-]+\.md)`", description))
    assert {"guides/scaling.md", "guides/tools.md"} <= named
    docs = installed.packages / "llama_stack_responses" / "docs"
    assert named <= {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


def test_command_failure_is_reported_in_one_line(installed: InstalledPackage, tmp_path: Path) -> None:
    target = tmp_path / "config.yaml"
    target.write_text("mine")
    (tmp_path / "file").touch()
    assert installed.refused("init", "starter", str(tmp_path)) == (
        f"llama-stack-responses: {target} already exists; use --force to overwrite it, or choose another folder."
    )
    assert target.read_text() == "mine"
    assert installed.refused("init", "stater", str(tmp_path / "new")) == (
        "llama-stack-responses: There is no template 'stater'; choose one of: annotated, cluster, deploy, gpt-oss, gpt-oss-llama-cpp, gpt-oss-vllm, monitoring, postgres, postgres-s3, redis, scale-out, starter."
    )
    assert installed.refused("init", "starter", str(tmp_path / "file")) == (
        f"llama-stack-responses: Cannot write {tmp_path / 'file' / 'config.yaml'}: File exists."
    )
