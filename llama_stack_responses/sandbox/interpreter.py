"""The program inside a container: runs Python code and shell commands, and keeps the code's variables between them.

It is started by `container.py` with its limits and the number of a socket as arguments. Requests and replies on the
socket are JSON, each behind its length in four bytes. What the code prints goes to the standard output. Nothing of the
package is imported here: inside, there is none.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import linecache
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from typing import Any

Json = dict[str, Any]


def main(limits: Json, channel: socket.socket) -> None:
    """Answers requests until the other side closes the socket."""
    _restrict(limits)
    scope: Json = {"__name__": "__main__"}
    number = 0
    while (request := _receive(channel)) is not None:
        number += 1
        answer = _shell(request) if "command" in request else _run(request["code"], scope, f"<cell {number}>")
        _send(channel, answer)


def _restrict(limits: Json) -> None:
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def _receive(channel: socket.socket) -> Json | None:
    head = channel.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    body = channel.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
    request: Json = json.loads(body)
    return request


def _send(channel: socket.socket, answer: Json) -> None:
    body = json.dumps(answer).encode()
    channel.sendall(struct.pack("!I", len(body)) + body)


def _run(code: str, scope: Json, name: str) -> Json:
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
    return {"failed": failed, "images": images}


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


def _figures() -> list[str]:
    """The open figures of matplotlib, if the code uses it, as PNG in base64."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    images: list[str] = []
    for number in pyplot.get_fignums() if pyplot else ():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png")  # type: ignore[union-attr]
        images.append(base64.b64encode(drawn.getvalue()).decode())
    if pyplot:
        pyplot.close("all")
    return images


def _shell(request: Json) -> Json:
    """Runs a command and waits for it, but not for what it leaves running."""
    most = request["max_bytes"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ended = _wait(request, out, err)
        return {"exit_code": ended, "stdout": _head(out, most), "stderr": _head(err, most)}


def _wait(request: Json, out: Any, err: Any) -> int | None:
    command = ["/bin/sh", "-c", request["command"]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    try:
        return process.wait(request["seconds"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def _head(file: Any, most: int) -> str:
    file.seek(0)
    text: str = file.read(most).decode(errors="replace")
    return text


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
