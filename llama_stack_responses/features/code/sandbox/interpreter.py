"""The program inside a container. It runs Python code and shell commands and keeps the code's variables between them.

`container.py` starts it with its limits, the number of a socket and, in a container with a network, a port as
arguments. It first sends its process id, with a descriptor of /proc and a socket that listens at that port, if there is
one. Requests and answers on the socket are JSON with a length prefix of four bytes; after an answer come the parts
whose sizes it names. The code prints to the standard output. This file imports nothing of the package, which is not
available inside.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import itertools
import json
import linecache
import os
import pathlib
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from typing import Any

Json = dict[str, Any]
Answer = tuple[Json, list[bytes]]

_DATA = pathlib.Path("/mnt/data")
_INIT = 1
_NICENESS = 10
_PIPE_BYTES = 2**16
_FILE_CLOCK = 5
"""CLOCK_REALTIME_COARSE of clock_gettime(2), by which the kernel dates files."""
_FIGURES = 32
_FIGURES_BYTES = 8 * 2**20
"""Maximum number and total bytes of the figures sent for a run: the server refuses more."""

_PICTURES = (".gif", ".jpeg", ".jpg", ".pdf", ".png", ".svg", ".webp")
"""Names of files in which code saves a figure."""


def main(limits: Json, channel: socket.socket, port: int | None) -> None:
    """Answer requests until the other side closes the socket."""
    _restrict(limits)
    _handshake(channel, port)
    sys.path.append(os.environ["PYTHONPATH"])  # it starts isolated, without this folder
    scope: Json = {"__name__": "__main__"}
    number = 0
    while (request := _receive(channel)) is not None:
        number += 1
        _collect_killed()
        answer = _shell(request) if "command" in request else _run(request["code"], scope, f"<cell {number}>")
        _send(channel, answer)


def _restrict(limits: Json) -> None:
    """Set the limits of this process and of the first one: the code can write to the memory of both."""
    for name, limit in limits.items():
        for pid in (_INIT, os.getpid()):
            resource.prlimit(pid, getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    os.nice(_NICENESS)  # the server has priority


def _handshake(channel: socket.socket, port: int | None) -> None:
    with contextlib.ExitStack() as opened:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, proc)
        listeners = [] if port is None else [opened.enter_context(socket.create_server(("127.0.0.1", port)))]
        socket.send_fds(channel, [str(os.getpid()).encode()], [proc, *(each.fileno() for each in listeners)])


def _collect_killed() -> None:
    """Reap the processes killed after the last call: until then they count against the process limit."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        for each in gc.get_objects():
            if issubclass(type(each), subprocess.Popen):
                each.poll()  # stores the exit status for the code
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _receive(channel: socket.socket) -> Json | None:
    head = channel.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    body = channel.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
    request: Json = json.loads(body)
    return request


def _send(channel: socket.socket, answer: Answer) -> None:
    header, parts = answer
    body = json.dumps({**header, "parts": [len(each) for each in parts]}).encode()
    channel.sendall(b"".join([struct.pack("!I", len(body)), body, *parts]))


def _run(code: str, scope: Json, name: str) -> Answer:
    failed, began = False, time.clock_gettime_ns(_FILE_CLOCK)
    try:
        _execute(code, scope, name)
    except SystemExit as error:
        failed = error.code not in (None, 0)
    except BaseException as error:  # every exception of the code is shown to the model
        failed = True
        _show(error, name)
    images = _figures()
    if images and not _has_saved_picture(began):
        _save(images, began)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {"failed": failed}, images


def _execute(code: str, scope: Json, name: str) -> None:
    """Run the code. Print the value of its last expression, as an interactive Python does."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), scope)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
        if value is not None:
            print(repr(value))


def _show(error: BaseException, name: str) -> None:
    """Print the traceback, starting at the code's own first frame."""
    frames = traceback.TracebackException.from_exception(error)
    own = [index for index, frame in enumerate(frames.stack) if frame.filename == name]
    frames.stack = traceback.StackSummary.from_list(frames.stack[own[0] :] if own else [])
    sys.stderr.write("".join(frames.format()))


def _figures() -> list[bytes]:
    """Return matplotlib's open figures as PNG, up to the limits; none if the code does not use matplotlib."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    images: list[bytes] = []
    left, numbers = _FIGURES_BYTES, pyplot.get_fignums() if pyplot else []
    for number in numbers[:_FIGURES]:
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png")  # type: ignore[union-attr]
        if drawn.tell() <= left:
            images.append(drawn.getvalue())
            left -= drawn.tell()
    if len(images) < len(numbers):
        print(f"{len(numbers) - len(images)} figures are too many or too large, and are not shown.")
    if pyplot:
        pyplot.close("all")
    return images


def _has_saved_picture(began: int) -> bool:
    """Return whether the code has written a picture since this time, in nanoseconds since the epoch."""
    for path in _DATA.rglob("*"):
        with contextlib.suppress(OSError):
            if path.suffix.lower() in _PICTURES and path.lstat().st_mtime_ns >= began:
                return True
    return False


def _save(images: list[bytes], began: int) -> None:
    """Save figures that the code only showed, under the first free names; `began` is when the run began."""
    names = (_DATA / f"figure-{number}.png" for number in itertools.count(1))
    for image in images:
        path = next(each for each in names if not os.path.lexists(each))
        with contextlib.suppress(OSError):  # in a closed folder there is no file
            try:
                path.write_bytes(image)
                os.utime(path, ns=(began - 1, began - 1))  # the next run may begin within the same tick of the clock
            except OSError:
                path.unlink(missing_ok=True)  # no part of one that does not fit


def _shell(request: Json) -> Answer:
    """Run a command and wait for it, but not for the processes that it leaves running."""
    command, pipe = ["/bin/sh", "-c", request["command"]], subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        return {"exit_code": 126}, [b"", f"{error}\n".encode()[: request["max_bytes"]]]
    with process.stdout as out, process.stderr as err:  # type: ignore[union-attr]
        printed = {out.fileno(): bytearray(), err.fileno(): bytearray()}
        if not _gather(process.pid, printed, request["max_bytes"], request["seconds"]):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"exit_code": None}, [bytes(each) for each in printed.values()]
    return {"exit_code": process.wait()}, [bytes(each) for each in printed.values()]


def _gather(pid: int, printed: dict[int, bytearray], limit: int, seconds: float) -> bool:
    """Read pipes until a process has ended, keeping up to `limit` bytes of each; return False at the time limit."""
    deadline, ended = time.monotonic() + seconds, os.pidfd_open(pid)
    waited = {*printed, ended}
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = select.select(waited, [], [], left)[0]
            for pipe in printed.keys() & ready:
                data = os.read(pipe, _PIPE_BYTES)
                printed[pipe] += data[: max(0, limit - len(printed[pipe]))]
                waited -= set() if data else {pipe}
            if ready == [ended]:
                return True
        return False
    finally:
        os.close(ended)


if __name__ == "__main__":
    main(
        json.loads(sys.argv[1]),
        socket.socket(fileno=int(sys.argv[2])),
        int(sys.argv[3]) if len(sys.argv) > 3 else None,
    )
