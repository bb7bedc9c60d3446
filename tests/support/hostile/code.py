"""Code in a container that takes as many resources, and leaves as many processes, as it can."""

from typing import Any, Final

import httpx

from tests.support.descendants import descendants
from tests.support.waiting import wait_until

from .attacker import Attacker, Attacks, client_error, refused

ATTACKS: Final = Attacks()

LEFT: Final = {
    "forks": """
import os
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        taken = b"x" * 8_000_000
        while True:
            pass
""",
    "fork_bomb": """
import os
while True:
    os.fork()
""",
    "threads": """
import threading
def turn():
    while True:
        pass
for _ in range(200):
    threading.Thread(target=turn, daemon=True).start()
""",
}
TAKES: Final = {
    "memory": "taken = [b'x' * 10_000_000 for _ in range(200)]",
    "sockets": """
import socket
kept = []
while True:
    a, b = socket.socketpair()
    a.setblocking(False)
    kept.append((a, b))
    try:
        while True:
            a.send(b"x" * 65_536)
    except BlockingIOError:
        pass
""",
    "pipes": """
import os
for _ in range(4):
    os.fork()
kept = []
while True:
    outlet, inlet = os.pipe()
    os.set_blocking(inlet, False)
    os.write(inlet, b"x" * 65_536)
    os.close(inlet)
    kept.append(outlet)
""",
    "terminals": "import os; kept = [os.openpty() for _ in range(200)]; [os.write(each, b'x' * 4096) for each, _ in kept]",
    "memory_files": """
import os
for number in range(100):
    os.write(os.memfd_create(str(number)), b"x" * 10_000_000)
""",
    "shared_memory": "import mmap; taken = [mmap.mmap(-1, 10**8) for _ in range(20)]; [each.write(b'x' * 10**8) for each in taken]",
    "reserved_space": "import os; os.posix_fallocate(os.open('large', os.O_CREAT | os.O_RDWR), 0, 720 * 2**20)",
    "written_space": "while True: open('large', 'ab').write(b'x' * 10**6)",
    "temporary_space": "while True: open('/tmp/large', 'ab').write(b'x' * 10**6)",
    "names": "for number in range(10**6): open(f'file-{number}', 'x').close()",
    "file_locks": """
import fcntl
files = [open(f"/tmp/{number}", "w") for number in range(50)]
for number in range(10**9):
    fcntl.lockf(files[number % 50], fcntl.LOCK_EX, 1, 2**60 - 2 * number)
""",
    "output": "while True: print('x' * 100_000)",
    "deep_result": "x = []\nfor _ in range(10**5): x = [x]\nx",
    "time": "while True: pass",
}
CLOSED: Final = {
    "folder": "import os; open('a', 'w').write('x'); os.chmod('/mnt/data', 0)",
    "contents": """
import os
os.makedirs("d")
open("d/a", "w").write("x")
for each in ("d/a", "d", "/mnt/data"):
    os.chmod(each, 0)
""",
}
TREE: Final = """
import os
for _ in range(3_000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
"""


def run(at: Attacker, code: str, container: str) -> None:
    """Let the model run the code in this container."""
    tools: list[dict[str, Any]] = [{"type": "code_interpreter", "container": container}]
    at.call("python", {"code": code}, tools=tools)
    client_error(at.wire.http.get(f"/containers/{container}/files"))


@ATTACKS.add(**LEFT)
def code_that_leaves_processes(at: Attacker, case: str) -> None:
    before = len(descendants(at.stack.pid))
    run(at, case, at.container())
    # The Python process that waits for the next call, and its jail.
    wait_until(lambda: len(descendants(at.stack.pid)) <= before + 4)


@ATTACKS.add(**TAKES)
def code_that_takes_all_it_can(at: Attacker, case: str) -> None:
    run(at, case, at.container())


@ATTACKS.add(**CLOSED)
def code_that_closes_its_folder(at: Attacker, case: str) -> None:
    container = at.container()
    run(at, case, container)
    path = f"/containers/{container}/files"
    client_error(at.wire.http.post(path, files={"file": ("new", b"x")}))
    for file in at.wire.http.get(path).json()["data"]:
        client_error_or_content(at.wire.http.get(f"{path}/{file['id']}/content"))
    run(at, "import os; os._exit(1)", container)
    tools: list[dict[str, Any]] = [{"type": "code_interpreter", "container": container}]
    include = ["code_interpreter_call.outputs"]
    [call] = [
        item
        for item in at.call("python", {"code": "print(6 * 7)"}, tools=tools, include=include)["output"]
        if item["type"] == "code_interpreter_call"
    ]
    assert "42" in str(call["outputs"]), call
    assert at.wire.http.delete(f"/containers/{container}").status_code == 200


def client_error_or_content(answer: httpx.Response) -> None:
    """Require the content of a file, or a 404."""
    if answer.status_code != 200:
        refused(answer, 404)


@ATTACKS.add()
def code_that_makes_folders_three_thousand_deep(at: Attacker) -> None:
    container = at.container()
    run(at, TREE, container)
    assert at.wire.http.delete(f"/containers/{container}").status_code == 200
    refused(at.wire.http.get(f"/containers/{container}"), 404)
