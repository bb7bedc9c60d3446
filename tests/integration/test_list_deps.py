"""`list-deps` of both hosts on every template: its packages can be installed, and are those that the template needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llama_stack_responses.cli import main, template_names
from tests.support.forks import Forks
from tests.support.snippet_programs import LIST_DEPS
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY, Host
from tests.support.wire import Json

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended, pytest.mark.day(0)]

PROVIDED = """
import json, sys
from importlib import import_module
import_module(sys.argv[2])
package = import_module(f"{sys.argv[1]}.provider")
types = [each.provider_type for each in package.get_provider_spec()]
print(json.dumps({"file": package.__file__, "types": types}))
"""

OWNERS = """
import json, sys
from importlib.metadata import distributions
found = {}
for each in distributions(path=[sys.argv[1]]):
    for file in each.files or []:
        if file.name == "provider.py" and len(file.parts) == 2:
            found.setdefault(file.parts[0], []).append(each.name)
print(json.dumps(found))
"""


def python(script: str, *arguments: str | Path, path: Path | None = None) -> Json:
    """Run a script without the checkout on Python's path, and return the JSON that it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path:
        env["PYTHONPATH"] = str(path)
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Json = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of each distribution of this repository."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (REPOSITORY, REPOSITORY / "providers" / "gpt_oss"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def listed(host: Host, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The output lines of the host's command by template; llama-stack gets the copy that the documentation makes."""
    folder = tmp_path_factory.mktemp("listed")
    configs = {name: str(REPOSITORY / "templates" / name / "config.yaml") for name in stack_names()}
    if host == "llama_stack":
        configs = {name: documented_copy(name, tmp_path_factory.mktemp(name)) for name in configs}
    found = {name: forks.run("stack", "list-deps", config, folder=folder) for name, config in configs.items()}
    assert {each.returncode for each in found.values()} == {0}, found
    return {name: each.stdout.splitlines() for name, each in found.items()}


def documented_copy(name: str, folder: Path) -> str:
    """Make the documented copy of a template's configuration; return its path, which the documented command names."""
    main(["init", name, str(folder / "my-stack")])
    copy, command = blocks()[LIST_DEPS].shell.splitlines()
    subprocess.run(copy, shell=True, cwd=folder, check=True)
    listing, path = command.rsplit(" ", 1)
    assert listing == "llama stack list-deps"
    return str(folder / path)


def stack_names() -> list[str]:
    """Return the names of the templates of a stack."""
    return [name for name in template_names() if (REPOSITORY / "templates" / name / "config.yaml").exists()]


def external(config: Json) -> dict[str, set[str]]:
    """Return the external provider types of a configuration by module."""
    found: dict[str, set[str]] = {}
    for providers in config["providers"].values():
        for each in providers:
            if "module" in each:
                found.setdefault(each["module"], set()).add(each["provider_type"])
    return found


def test_list_deps_names_packages_that_the_wheels_provide(
    host: Host, listed: dict[str, list[str]], wheels: Path, tmp_path: Path
) -> None:
    wanted = {
        name: external(yaml.safe_load((REPOSITORY / "templates" / name / "config.yaml").read_text())) for name in listed
    }
    for name, [packages, *modules] in listed.items():
        assert {"fastapi", "uvicorn"} <= set(packages.split())
        assert set(modules) == set(wanted[name])
    names = sorted({module for _, *modules in listed.values() for module in modules})
    install = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-index", "--no-deps"]
    target = tmp_path / "packages"
    subprocess.run([*install, "--find-links", wheels, "--target", target, *names], check=True, capture_output=True)
    # The gpt-oss provider is not imported here because it needs torch. Its own tests import it.
    [ours] = set(names) - {"llama_stack_gpt_oss"}
    provided = python(PROVIDED, ours, host, path=target)
    assert Path(provided["file"]).is_relative_to(target)
    for modules_of_template in wanted.values():
        assert modules_of_template[ours] <= set(provided["types"])
    assert python(OWNERS, target) == {
        "llama_stack_responses": ["llama-stack-responses"],
        "llama_stack_openai_chat": ["llama-stack-responses"],
        "llama_stack_gpt_oss": ["llama-stack-gpt-oss"],
    }
