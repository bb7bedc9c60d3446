"""The targets of the Makefile run every test, and select by existing markers."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
LIVE: Final = "tests/integration"
WHEELS: Final = TESTS / "wheels" / "try_wheels.py"
"""Tests that need a package index; the file's name excludes them from runs that do not name it."""
ENV: Final = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def commands(target: str) -> dict[str, list[str]]:
    """Return the arguments of pytest in each command of a target, by the name of the report."""
    printed = subprocess.run(
        ["make", "--dry-run", "--directory", ROOT, target], env=ENV, capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in printed.splitlines():
        if " -m pytest " in line:
            arguments = shlex.split(line.partition(" -m pytest ")[2].partition(" 2>&1")[0])
            [report] = [each for each in arguments if each.startswith("--junit-xml=")]
            found[Path(report).stem] = arguments
    return found


def paths(arguments: list[str]) -> list[str]:
    return [each for each in arguments if each.startswith("tests/") and not each.endswith(".ini")]


def selection(arguments: list[str]) -> str | None:
    return arguments[arguments.index("-m") + 1] if "-m" in arguments else None


def test_all_targets_select_nothing_but_the_host() -> None:
    targets = commands("test-all")
    selections = {name: selection(arguments) for name, arguments in targets.items()}
    assert selections == {"llama-stack": None, "ogx": "not one_host", "gpt-oss": None, "wheels": None}
    for arguments in targets.values():
        excluding = [each for each in arguments if each.startswith(("-k", "--ignore", "--deselect", "--lf"))]
        assert excluding == []


def test_all_targets_cover_every_test_file() -> None:
    found = {name: paths(arguments) for name, arguments in commands("test-all").items()}
    assert found == {
        "llama-stack": [],  # all of `testpaths` except what pyproject.toml ignores
        "ogx": [LIVE],
        "gpt-oss": ["tests/gpt_oss"],
        "wheels": [str(WHEELS.relative_to(ROOT))],
    }


def test_pytest_settings_ignore_only_gpt_oss_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("testpaths") == ["tests"]
    ignored = [
        each for each in pytestconfig.getini("addopts") if each.startswith(("--ignore", "--deselect", "-m", "-k"))
    ]
    assert ignored == ["--ignore=tests/gpt_oss"]


def test_every_file_with_tests_is_named_as_test_file() -> None:
    has_tests = re.compile(r"^(async )?def test_", re.MULTILINE)
    files = [path for path in TESTS.rglob("*.py") if has_tests.search(path.read_text())]
    assert [path for path in files if not path.name.startswith("test_")] == [WHEELS]


def test_selection_of_short_run_names_known_markers(pytestconfig: pytest.Config) -> None:
    known = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    found = {name: selection(arguments) for name, arguments in commands("test").items()}
    assert found.keys() == {"llama-stack", "ogx"}
    for expression in found.values():
        assert expression
        words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
        assert words
        assert words <= known


def test_both_hosts_marker_is_only_used_in_live_tests() -> None:
    marked = [path for path in TESTS.rglob("test_*.py") if "mark.both_hosts" in path.read_text()]
    assert marked
    assert all(path.is_relative_to(ROOT / LIVE) for path in marked if path != Path(__file__))


def test_ci_runs_every_test() -> None:
    assert "test-all" in (ROOT / ".ci" / "run").read_text().split()


@pytest.mark.parametrize("target", ["demo", "serve"])
def test_unknown_web_search_is_refused_before_packages_are_installed(target: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for each in (*ROOT.iterdir(), *(ROOT / "scripts").iterdir()):
        if not each.name.startswith(".") and each.name not in ("scripts", "install-run"):
            (tmp_path / each.relative_to(ROOT)).symlink_to(each)
    installer = tmp_path / "scripts" / "install-run"
    installer.write_text("#!/bin/sh\necho installing\nexit 1\n")
    installer.chmod(0o755)
    ran = subprocess.run(
        ["make", target], cwd=tmp_path, env=ENV | {"WEB_SEARCH": "google"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "WEB_SEARCH is 'google'; it can be 'ddgs', or be left out." in ran.stderr
    assert "installing" not in ran.stdout
