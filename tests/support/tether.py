"""Run a command that dies with the process that started it.

    python tether.py PARENT_PID COMMAND ARGUMENT...

A test run that is killed runs no `finally` and no `atexit`. So the kernel is asked to send SIGKILL to this process
when its parent ends; the request outlives `exec`, and the command itself need not know. A script of its own, because
`preexec_fn` may deadlock in a process that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was asked
            raise SystemExit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
