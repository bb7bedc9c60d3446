"""Code in a container that takes as many resources, and leaves as many processes, as it can."""

from typing import Any, Final

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
    "output": "while True: print('x' * 100_000)",
    "deep_result": "x = []\nfor _ in range(10**5): x = [x]\nx",
    "time": "while True: pass",
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


@ATTACKS.add()
def code_that_makes_folders_three_thousand_deep(at: Attacker) -> None:
    container = at.container()
    run(at, TREE, container)
    assert at.wire.http.delete(f"/containers/{container}").status_code == 200
    refused(at.wire.http.get(f"/containers/{container}"), 404)
