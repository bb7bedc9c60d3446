"""Import a host once, and fork a process for each of its servers.

    python fork_server.py SOCKET_FD SCRIPT MODULE...

It imports the modules and then serves one client, which sends a JSON object in a line and gets one:

    {"command": [...], "env": {...}, "cwd": "...", "log": "...", "errors": "..."}
                                                                   run SCRIPT with its output and errors in these files;
                                                                   {"pid": 42}, or {"refused": "..."} if a fork could
                                                                   differ from a new process
    {"poll": 42}                                                   {"status": null}, or how the process ended, once

A forked process runs the script as `__main__` with its own session, environment, folder and output, and ends with this
process. What a fork cannot have anew must be the same: environment variables that the imports have read, or that the
interpreter and C libraries read by themselves. A process with threads does not fork. Where all that an import does with
a variable can be done later as well, it is done in the forked process.

Garbage collections of a forked process skip what was imported before. Otherwise each, and above all the last one when
the process ends, would copy the memory of all imports, which takes half a second of processor time.

The hash seed is this process's too: servers that must not have the same one are started without it.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
READ_IN_C: Final = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "OPENBLAS_",
    "OPENSSL_",
    "SSLKEYLOGFILE",
    "LC_",
    "LANG",
    "TZ",
)
"""Prefixes of environment variables that are read where `os.environ` does not see it, before a server runs."""

DONE_LATER: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("llama_stack.telemetry", "setup_telemetry"),
    "CLOCK_SHIFT_FILE": ("sitecustomize", "shift"),
}
"""Variables without which an import does nothing, and the module and the function that it calls for them."""


class EnvironmentReads:
    """Records which environment variables are read in a `with` block."""

    def __init__(self) -> None:
        """Start without any."""
        self.names: set[str] = set()
        self.all = False
        self._mapping: Any = type(os.environ)
        self._methods = (self._mapping.__getitem__, self._mapping.__iter__)

    def __enter__(self) -> "EnvironmentReads":
        """Start recording."""
        get, iterate = self._methods

        def recorded_get(mapping: Any, name: str) -> str:
            self.names.add(name)
            value: str = get(mapping, name)
            return value

        def recorded_iterate(mapping: Any) -> Iterator[str]:
            self.all = True
            names: Iterator[str] = iterate(mapping)
            return names

        self._mapping.__getitem__, self._mapping.__iter__ = recorded_get, recorded_iterate
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        self._mapping.__getitem__, self._mapping.__iter__ = self._methods

    def differing(self, env: Mapping[str, str]) -> list[str]:
        """Return the variables that were read, or may have been, and have another value in `env`."""
        later = DONE_LATER.keys() - os.environ.keys()
        changed = {name for name in {*env, *os.environ} - later if env.get(name) != os.environ.get(name)}
        return sorted(name for name in changed if self.all or name in self.names or name.startswith(READ_IN_C))


class ForkServer:
    """The process after its imports.

    Args:
        client: the connection.
        script: what the forked processes run.
        reads: what the imports have read.
    """

    def __init__(self, client: socket.socket, script: str, reads: EnvironmentReads) -> None:
        self._client = client
        self._script = script
        self._reads = reads

    def serve(self) -> str | None:
        """Answer until the client leaves; return None then, and in a forked process the script to run."""
        with self._client.makefile("rwb") as stream:
            for line in stream:
                request = json.loads(line)
                answer = self._poll(request["poll"]) if "poll" in request else self._start(request)
                if answer is None:
                    self._client.close()
                    return self._script
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
        return None

    def _poll(self, pid: int) -> dict[str, Any]:
        found, status = os.waitpid(pid, os.WNOHANG)
        return {"status": os.waitstatus_to_exitcode(status) if found else None}

    def _start(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None in the forked process."""
        if request["command"][0] != self._script:
            return {"refused": "another program"}
        if differing := self._reads.differing(request["env"]):
            return {"refused": f"differing variables: {', '.join(differing)}"}
        if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 (needs no objects)
            return {"refused": "threads"}
        parent = os.getpid()
        if pid := os.fork():
            return {"pid": pid}
        become(request, parent)
        return None


def become(request: dict[str, Any], parent: int) -> None:
    """Make of a forked process what a new one would be."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request
        os._exit(1)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it in all processes of the tests
    for each, path in ((1, request["log"]), (2, request["errors"])):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, each)
        os.close(file)
    os.chdir(request["cwd"])
    added = request["env"].keys() - os.environ.keys()
    os.environ.clear()
    os.environ.update(request["env"])
    for name, (module, function) in DONE_LATER.items():
        if name in added and module in sys.modules:
            getattr(sys.modules[module], function)()
    sys.argv = list(request["command"])
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        vars(process)["ORIGINAL_DIR"] = request["cwd"]  # it is read once, at the import


def run(script: str) -> None:
    """Run a script as `__main__`."""
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__loader__ = SourceFileLoader("__main__", script)
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


def prepared() -> ForkServer:
    """Import the modules and return the server."""
    client, script, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    with EnvironmentReads() as reads:
        for name in modules:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return ForkServer(client, script, reads)


if __name__ == "__main__" and (found := prepared().serve()) is not None:
    run(found)
