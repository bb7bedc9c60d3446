"""The program inside a container: runs Python code and shell commands, and keeps the code's variables between them.

It is started by `container.py` with its limits and the number of a socket as arguments. It greets with its process id
and a descriptor of /proc. Requests and replies on the socket are JSON, each behind its length in four bytes; behind a
reply come the parts whose sizes it names. What the code prints goes to the standard output. Nothing of the package is
imported here: inside, there is none.
"""

from __future__ import annotations

import ast
import gc
import io
import json
import linecache
import os
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

_INIT = 1
_NICENESS = 10
_PIPE_BYTES = 2**16
_FIGURES = 32
_FIGURES_BYTES = 8 * 2**20
"""Figures of a run that are sent, and their bytes: more would be refused."""


def main(limits: Json, channel: socket.socket) -> None:
    """Answers requests until the other side closes the socket."""
    _restrict(limits)
    _greet(channel)
    scope: Json = {"__name__": "__main__"}
    number = 0
    while (request := _receive(channel)) is not None:
        number += 1
        _collect_killed()
        answer = _shell(request) if "command" in request else _run(request["code"], scope, f"<cell {number}>")
        _send(channel, answer)


def _restrict(limits: Json) -> None:
    """Sets limits of this process and of the first one: the code may write to the memory of either."""
    for name, most in limits.items():
        for pid in (_INIT, os.getpid()):
            resource.prlimit(pid, getattr(resource, f"RLIMIT_{name}"), (most, most))
    os.nice(_NICENESS)  # the server goes first


def _greet(channel: socket.socket) -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(channel, [str(os.getpid()).encode()], [proc])
    os.close(proc)


def _collect_killed() -> None:
    """Collects the processes that were killed after the last call: until then they count as processes."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        for each in gc.get_objects():
            if issubclass(type(each), subprocess.Popen):
                each.poll()  # it keeps the exit status for the code
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
    failed = False
    try:
        _execute(code, scope, name)
    except SystemExit as error:
        failed = error.code not in (None, 0)
    except BaseException as error:  # whatever the code raises is shown to the model
        failed = True
        _show(error, name)
    images = _figures()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {"failed": failed}, images


def _execute(code: str, scope: Json, name: str) -> None:
    """Runs the code; a value that its last line has is printed, as an interactive Python does."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), scope)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
        if value is not None:
            print(repr(value))


def _show(error: BaseException, name: str) -> None:
    """Prints the traceback from the code's own first line on."""
    frames = traceback.TracebackException.from_exception(error)
    own = [index for index, frame in enumerate(frames.stack) if frame.filename == name]
    frames.stack = traceback.StackSummary.from_list(frames.stack[own[0] :] if own else [])
    sys.stderr.write("".join(frames.format()))


def _figures() -> list[bytes]:
    """The open figures of matplotlib, if the code uses it, as PNG: as many as may be sent."""
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


def _shell(request: Json) -> Answer:
    """Runs a command and waits for it, but not for what it leaves running."""
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


def _gather(pid: int, printed: dict[int, bytearray], most: int, seconds: float) -> bool:
    """Reads pipes, keeping up to `most` bytes of each, until a process has ended; False when the time is up."""
    deadline, ended = time.monotonic() + seconds, os.pidfd_open(pid)
    waited = {*printed, ended}
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = select.select(waited, [], [], left)[0]
            for pipe in printed.keys() & ready:
                data = os.read(pipe, _PIPE_BYTES)
                printed[pipe] += data[: max(0, most - len(printed[pipe]))]
                waited -= set() if data else {pipe}
            if ready == [ended]:
                return True
        return False
    finally:
        os.close(ended)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
