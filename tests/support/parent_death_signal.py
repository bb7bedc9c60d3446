"""Run a command that dies with the process that started it.

    python parent_death_signal.py PARENT_PID USER COMMAND ARGUMENT...

A killed test run executes no `finally` and no `atexit`. So this process asks the kernel to send it SIGKILL when its
parent ends; the request survives `exec`, and the command need not know. It is a separate script because `preexec_fn`
may deadlock in a process with threads.

USER is `same`, or `ordinary` for servers that refuse to run as root: if it is root, the command runs as another user of
a user namespace, in which it keeps root's access to files.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request the signal, then execute the command."""
    parent, user, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if user == "ordinary" and os.geteuid() == 0:
        _become_ordinary()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the request
            raise SystemExit(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it in all processes of the tests
    os.execvp(command[0], command)


def _become_ordinary() -> None:
    os.unshare(os.CLONE_NEWUSER)
    for name, mapping in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
        Path(f"/proc/self/{name}").write_text(mapping)


if __name__ == "__main__":
    main()
