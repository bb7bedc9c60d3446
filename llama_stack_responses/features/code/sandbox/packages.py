"""The Python packages that code in containers can import: packages of this server's environment, or of another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_MAX_SHOWN: Final = 50
_REQUESTED: Final = "REQUESTED"
"""The file that an installer writes for a package that was asked for, not for those that it needs."""


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages of the server's environment, or of the environment of another Python.

    Attributes:
        shown: the packages that the operator chose, each with its version, such as `numpy 2.5.5`.
        paths: files and folders of the server's environment to mount: those of the chosen packages, and of all that
            these need.
    """

    shown: Sequence[str] = ()
    paths: Sequence[Path] = ()

    def sentence(self) -> str:
        """Return a sentence that lists the packages; empty if there are none."""
        more = f" and {len(self.shown) - _MAX_SHOWN} more" if len(self.shown) > _MAX_SHOWN else ""
        return f"Installed packages: {', '.join(self.shown[:_MAX_SHOWN])}{more}." if self.shown else ""


def packages_of_server(names: Iterable[str]) -> Packages:
    """Return the packages of these names, which are installed in the environment of this server.

    Raises:
        LookupError: one of them is not installed, or cannot be shared; the message says which.
    """
    chosen = [_installed(name) for name in names]
    paths = {path for each in _with_needed(chosen) for path in _paths(each)}
    return Packages(_shown(chosen), tuple(sorted(paths)))


def packages_of(python: Path) -> Packages:
    """Return the packages that were installed by name in the virtual environment of another Python."""
    folders = [str(each) for each in python.parent.parent.glob("lib/python3*/site-packages")]
    asked_for = [each for each in distributions(path=folders) if each.read_text(_REQUESTED) is not None]
    return Packages(_shown(asked_for))


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise LookupError(f"the package '{name}' is not installed in the environment of this server") from None


def _with_needed(chosen: Iterable[Distribution]) -> Iterable[Distribution]:
    """Return packages, and all that they need."""
    found: dict[tuple[str, str], Distribution] = {}
    open_ = [(each, "") for each in chosen]
    while open_:
        package, extra = open_.pop()
        if (canonicalize_name(package.name), extra) not in found:
            found[canonicalize_name(package.name), extra] = package
            open_ += [(_installed(name), each) for name, extras in _needed_by(package, extra) for each in extras]
    return found.values()


def _needed_by(package: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the names of the packages that a package needs for an extra, with the extras of each; `""` is none."""
    for line in package.requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield needed.name, {"", *needed.extras}


def _paths(package: Distribution) -> set[Path]:
    """Return what a package has at the top of its environment: folders, modules and its metadata."""
    tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
    if not tops:
        raise LookupError(f"the package '{package.name}' has no list of its files; install it with pip or uv")
    return {Path(str(package.locate_file(top))) for top in tops}


def _shown(packages: Iterable[Distribution]) -> tuple[str, ...]:
    return tuple(sorted({f"{each.name} {each.version}" for each in packages}))
