"""The program that prepares the environment of a container's jail and starts the jail.

`volume` makes a file system in memory whose size and number of files the kernel limits (tmpfs(5)), in its own mount
namespace, and waits until the server holds that namespace. `start` enters it and executes the jail's command. If the
server is root, the jail starts as another user. Such a user cannot pass a folder without permission for others, such as
root's home. An accessible folder is then mounted over it in that mount namespace, with nothing in it but the paths that
the jail needs. This file imports nothing of the package, whose dependencies take longer to
import than the rest takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

_BIND: Final = 0x1000
_WHOLE: Final = 0x4000
_TO_HERE_ONLY: Final = 0x80000
_NO_DEVICES: Final = 0x2 | 0x4
"""Flags of mount(2): MS_BIND, MS_REC, MS_SLAVE, and MS_NOSUID with MS_NODEV."""

FOLDERS: Final = ("data", "tmp", "shm")
"""The folders of a volume."""


def volume(plan: Json) -> None:
    """Make a volume, report that it is ready, and wait for the end of the standard input.

    Args:
        plan: `place`, a folder; the limits `bytes` and `files`; `user` and `places` as for `start`.
    """
    user, path = plan["user"], Path(plan["place"])
    if user is None:
        _become_root_of_a_namespace()
    else:
        _own_mounts()
        _reach([Path(each) for each in plan["places"]])
    owner = "" if user is None else f",uid={user},gid={user}"
    options = f"size={plan['bytes']},nr_inodes={plan['files'] + 1 + len(FOLDERS)},mode=700{owner}"
    _mount(path, "tmpfs", kind="tmpfs", flags=_NO_DEVICES, options=options)
    for name in FOLDERS:
        (path / name).mkdir(mode=0o700)
        if user is not None:
            os.chown(path / name, user, user)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def start(plan: Json, command: list[str]) -> None:
    """Replace this process with the command.

    Args:
        plan: `user` to run as, null for the current one; `group`, the folder of a control group to join, or null;
            `namespaces`, descriptors of the namespaces to enter; `places`, paths to make accessible if there are no
            namespaces.
    """
    user, namespaces = plan["user"], plan["namespaces"]
    if plan["group"]:
        Path(plan["group"], "cgroup.procs").write_text("0")
    for each in namespaces:
        os.setns(each)
        os.close(each)
    if user is not None:
        if not namespaces:
            _reach([Path(each) for each in plan["places"]])
        os.fchown(sys.stdout.fileno(), user, user)  # the jailed code may reopen it as /dev/stdout
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.execv(command[0], command)  # noqa: S606 (a shell is not needed)


def _become_root_of_a_namespace() -> None:
    """Enter a new user namespace in which this process may mount."""
    user, group = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _own_mounts() -> None:
    os.unshare(os.CLONE_NEWNS)
    _mount(Path("/"), flags=_WHOLE | _TO_HERE_ONLY)


def _reach(paths: Collection[Path]) -> None:
    """Make those paths accessible that are below folders closed to other users."""
    closed = {folder for path in paths if (folder := _closed(path))}
    if not closed:
        return
    try:
        _own_mounts()
    except OSError as error:
        raise OSError(error.errno, "it is closed to others", str(min(closed))) from None
    held = {path: os.open(path, os.O_PATH) for path in sorted(paths)}
    for folder in closed:
        _mount(folder, "tmpfs", kind="tmpfs", options="mode=755")
    os.umask(0o022)
    for path, descriptor in held.items():
        if not path.exists():
            _make(path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _mount(path, f"/proc/self/fd/{descriptor}", flags=_BIND | _WHOLE)


def _closed(path: Path) -> Path | None:
    """Return the outermost parent folder that other users may not pass; None if all are open."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & stat.S_IXOTH), None)


def _make(path: Path, *, is_folder: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        path.mkdir()
    else:
        path.touch()


def _mount(path: Path, source: str = "", *, kind: str = "", flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(source.encode(), bytes(path), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))


def main(action: str, plan: Json, command: list[str]) -> None:
    """Make a volume or start a jail; on failure, print the reason to the standard error."""
    try:
        if action == "volume":
            volume(plan)
        else:
            start(plan, command)
    except OSError as error:
        if plan["user"] is None:
            sys.exit(f"A container could not be started: {error}.")
        sys.exit(
            f"This server runs as root and could not start a container as the user {plan['user']}: {error}. "
            "Run it as an ordinary user, or with CAP_SYS_ADMIN, CAP_CHOWN, CAP_SETUID and CAP_SETGID."
        )


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
