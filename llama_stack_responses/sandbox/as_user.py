"""The program that starts a jail as another user of this machine, where the server is root.

It is started by `jail.py` with the user's number, the places that must be reached, and the command. A place below a
folder that is closed to others, as root's home is, is reached all the same: in a mount namespace of the jail's own, an
open folder lies over the closed one, and holds nothing but the ways to such places. Nothing of the package is imported
here: the server's packages take longer to import than the rest takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BIND: Final = 0x1000
_WHOLE: Final = 0x4000
_TO_HERE_ONLY: Final = 0x80000
"""Flags of mount(2): MS_BIND, MS_REC and MS_SLAVE."""


def main(user: int, places: list[Path], command: list[str]) -> None:
    """Becomes the command."""
    try:
        _reach(places)
        os.fchown(sys.stdout.fileno(), user, user)  # what runs inside may open it anew, as /dev/stdout
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.execv(command[0], command)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        sys.exit(
            f"This server is root, and could not start a container as the user {user}: {error}. "
            "Run it as an ordinary user, or with CAP_SYS_ADMIN, CAP_CHOWN, CAP_SETUID and CAP_SETGID."
        )


def _reach(places: Iterable[Path]) -> None:
    """Opens the ways to those of the places that are below closed folders."""
    closed = {folder for place in places if (folder := _closed(place))}
    if not closed:
        return
    try:
        os.unshare(os.CLONE_NEWNS)
    except OSError as error:
        raise OSError(error.errno, "it is closed to others", str(min(closed))) from None
    _mount(Path("/"), flags=_WHOLE | _TO_HERE_ONLY)
    held = {place: os.open(place, os.O_PATH) for place in sorted(places)}
    for folder in closed:
        _mount(folder, "tmpfs", kind="tmpfs", options="mode=755")
    os.umask(0o022)
    for place, descriptor in held.items():
        if not place.exists():
            _make(place, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _mount(place, f"/proc/self/fd/{descriptor}", flags=_BIND | _WHOLE)


def _closed(place: Path) -> Path | None:
    """The outermost of the folders above that others may not go through."""
    return next((each for each in reversed(place.parents) if not each.stat().st_mode & stat.S_IXOTH), None)


def _make(place: Path, *, is_folder: bool) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        place.mkdir()
    else:
        place.touch()


def _mount(place: Path, source: str = "", *, kind: str = "", flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(source.encode(), bytes(place), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(each) for each in json.loads(sys.argv[2])], sys.argv[3:])
