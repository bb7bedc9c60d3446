"""The packages that code in containers can import."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.features.code.containers.opening import installed_packages, open_jail
from llama_stack_responses.features.code.sandbox.container import Container
from llama_stack_responses.features.code.sandbox.packages import Packages, packages_of, packages_of_server
from llama_stack_responses.features.code.settings import CodeInterpreter
from tests.unit.features.code.test_container import BOUNDS, MIB, jail, volumes

CHART = "import matplotlib.pyplot as plt\nbars = plt.bar(['Oslo', 'Kyoto'], [12, 15])\n"
FILL = """
with open('all', 'wb', 0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
"""
PNG = b"\x89PNG\r\n"


def installed(folder: Path, name: str, *, needs: str = "", requested: bool = True, files: str | None = None) -> None:
    """Create the metadata of a package in a folder."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n")
    record = f"{name}/__init__.py,,\n" if files is None else files
    (metadata / "RECORD").write_text(record)
    for line in record.splitlines():
        there = folder / line.removesuffix(",,")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.touch()
    if requested:
        (metadata / "REQUESTED").touch()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages of this process."""
    folder = tmp_path / "lib" / "packages"
    monkeypatch.syspath_prepend(str(folder))
    return folder


# Which


def test_chosen_package_comes_with_all_that_it_needs(environment: Path) -> None:
    installed(
        environment, "table", needs="Requires-Dist: sums[fast]>=1\nRequires-Dist: windows; sys_platform == 'win32'"
    )
    installed(environment, "sums", needs="Requires-Dist: engine; extra == 'fast'\nRequires-Dist: docs; extra == 'doc'")
    installed(environment, "engine", needs="Requires-Dist: table")
    found = packages_of_server(["Table"])
    assert found.shown == ("table 1.0",)
    assert [each.name for each in found.paths] == ["engine", "sums", "table"]


def test_top_of_package_is_shared_without_what_lies_elsewhere(environment: Path) -> None:
    installed(
        environment, "six", files="six.py,,\n__pycache__/six.pyc,,\nsix-1.0.dist-info/RECORD,,\n../../bin/six,,\n"
    )
    assert [each.name for each in packages_of_server(["six"]).paths] == ["six-1.0.dist-info", "six.py"]


def test_package_that_is_not_installed_ends_start_with_its_name() -> None:
    settings = CodeInterpreter(folder=Path("/x"), packages=["numpy", "no-such-package"])
    with pytest.raises(
        WrongConfiguration, match=r"^'packages' of 'code_interpreter' cannot be used: the package 'no-such-pa"
    ):
        open_jail(settings)


def test_needed_package_that_is_not_installed_is_named(environment: Path) -> None:
    installed(environment, "table", needs="Requires-Dist: gone")
    with pytest.raises(LookupError, match="'gone' is not installed in the environment of this server"):
        packages_of_server(["table"])


def test_package_without_list_of_files_is_refused(environment: Path) -> None:
    installed(environment, "table", files="")
    with pytest.raises(LookupError, match="'table' has no list of its files"):
        packages_of_server(["table"])


def test_packages_of_another_python_are_those_that_were_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "python3.12" / "site-packages"
    installed(folder, "table")
    installed(folder, "sums", requested=False)
    settings = CodeInterpreter(folder=Path("/x"), python=tmp_path / "bin" / "python")
    assert installed_packages(settings) == packages_of(tmp_path / "bin" / "python") == Packages(("table 1.0",))


def test_packages_beside_another_python_are_refused() -> None:
    with pytest.raises(ValidationError, match="install them in that of 'python' instead"):
        CodeInterpreter(folder=Path("/x"), python=Path("/usr/bin/python3"), packages=["numpy"])


@pytest.mark.parametrize(
    ("given", "names"), [("numpy, pandas", ["numpy", "pandas"]), (["numpy"], ["numpy"]), (None, []), ("", [])]
)
def test_packages_can_be_text_with_commas(given: object, names: list[str]) -> None:
    config = ResponsesConfig.model_validate({"code_interpreter": {"folder": "/x", "packages": given}})
    assert config.code_interpreter.packages == names  # type: ignore[attr-defined]


def test_sentence_lists_no_more_than_fifty_packages() -> None:
    assert Packages().sentence() == ""
    assert Packages(("numpy 2.0", "pandas 3.0")).sentence() == "Installed packages: numpy 2.0, pandas 3.0."
    assert Packages(tuple(f"p{number} 1" for number in range(60))).sentence().endswith("p49 1 and 10 more.")


# In a container


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    """A container with real packages and the default limits, apart from the time, which other tests need too."""
    defaults = CodeInterpreter(folder=tmp_path)
    bounds = replace(BOUNDS, memory_bytes=defaults.memory_mb * MIB, processes=defaults.processes)
    packages = packages_of_server(["numpy", "pandas", "matplotlib"])
    with_packages = replace(jail(), packages=packages.paths, threads=2)
    container = Container(with_packages, volumes().make(tmp_path), bounds)
    yield container
    await container.kill()


async def test_code_and_shell_import_packages_of_server(container: Container) -> None:
    code = "import numpy, pandas, PIL\nnumpy.linalg.inv(numpy.eye(300)).sum(), int(pandas.Series([1, 2]).sum())"
    ran = await container.run(code)
    assert (ran.printed, ran.failed) == ("(np.float64(300.0), 3)\n", False)
    done = await container.command("python3 -c 'import numpy; print(numpy.ones(2).sum())'", 60, 1000)
    assert (done.stdout, done.stderr) == ("2.0\n", "")


async def test_code_imports_no_other_package_of_server(container: Container) -> None:
    ran = await container.run("import pydantic")
    assert "ModuleNotFoundError: No module named 'pydantic'" in ran.printed


async def test_packages_cannot_be_changed(container: Container) -> None:
    ran = await container.run("import numpy, pathlib; pathlib.Path(numpy.__file__).write_text('')")
    assert "Read-only file system" in ran.printed


async def test_libraries_start_as_many_threads_as_processors(container: Container) -> None:
    code = "import numpy, os; m = numpy.ones((500, 500)); _ = m @ m; len(os.listdir('/proc/self/task'))"
    ran = await container.run(code)
    assert re.fullmatch("[12]\n", ran.printed), ran.printed


@pytest.mark.extended
async def test_shown_figure_becomes_image_and_file(container: Container) -> None:
    ran = await container.run(f"{CHART}plt.show()")
    assert (ran.printed, ran.failed, len(ran.images)) == ("", False, 1)
    assert [each.name for each in container.folder.iterdir()] == ["figure-1.png"], "caches are elsewhere"
    assert (container.folder / "figure-1.png").read_bytes().startswith(PNG)
    second = await container.run(f"{CHART}plt.figure()\n{CHART}")
    assert len(second.images) == 2
    assert {each.name for each in container.folder.iterdir()} == {f"figure-{number}.png" for number in (1, 2, 3)}


@pytest.mark.extended
async def test_saved_figure_becomes_image_and_no_second_file(container: Container) -> None:
    code = f"{CHART}import os\nos.mkdir('charts')\nplt.savefig('charts/sales.SVG', format='svg')"
    ran = await container.run(code)
    assert (len(ran.images), ran.failed) == (1, False)
    assert [each.name for each in container.folder.iterdir()] == ["charts"]


@pytest.mark.extended
async def test_figure_that_does_not_fit_becomes_image_and_no_file(container: Container) -> None:
    ran = await container.run(f"{CHART}{FILL}")
    assert (len(ran.images), ran.failed) == (1, False), ran.printed
    assert [each.name for each in container.folder.iterdir()] == ["all"]


@pytest.mark.extended
async def test_figure_in_closed_folder_becomes_image(container: Container) -> None:
    ran = await container.run(f"{CHART}import os\nos.chmod('/mnt/data', 0o500)")
    assert (len(ran.images), ran.failed) == (1, False)


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the plain Python is that of the tests")
async def test_code_without_packages_imports_none(tmp_path: Path) -> None:
    container = Container(jail(), volumes().make(tmp_path), BOUNDS)
    try:
        assert "No module named 'pandas'" in (await container.run("import pandas")).printed
    finally:
        await container.kill()
