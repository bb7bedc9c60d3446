"""Host names whose lookup takes for ever, in every place of a request that may name a URL.

The C library reads the file in HOSTALIASES to look up a name without dots. The file is a named pipe that no process opens
for writing, so such a lookup blocks its thread until the stack ends, and sends nothing to the network. Therefore these
attacks are the last ones.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from .attacker import DONE, Attacker, Attacks, ended, refused
from .pages import find

ATTACKS: Final = Attacks()
AT_ONCE: Final = 12
SLOW: Final = "http://slow{number}:80/"


def slow_names(folder: Path) -> Mapping[str, str]:
    """Return the environment in which names without dots are never found."""
    os.mkfifo(folder / "aliases")
    return {"HOSTALIASES": str(folder / "aliases")}


def file(at: Attacker, url: str) -> None:
    refused(at.ask({"type": "input_file", "file_url": url}))


def image(at: Attacker, url: str) -> None:
    refused(at.ask({"type": "input_image", "image_url": url}, model="local/offline"))


def mcp(at: Attacker, url: str) -> None:
    tool = {"type": "mcp", "server_label": "s", "server_url": url, "require_approval": "never"}
    refused(at.ask(tools=[tool]), 424)


def page(at: Attacker, url: str) -> None:
    response = at.call("open_page", {"page": url}, tools=[{"type": "web_search"}])
    assert response["status"] == "completed"


@ATTACKS.add(file=file, image=image, mcp=mcp, page=page)
def host_names_that_are_never_found(at: Attacker, case: object) -> None:
    """The lookups have threads of their own: those of the event loop and of large requests remain free."""
    at.upstream.script("offline", DONE)
    find(at.web, "/page")
    assert callable(case)
    with ThreadPoolExecutor(AT_ONCE) as users:
        asking = [users.submit(case, at, SLOW.format(number=number)) for number in range(AT_ONCE)]
        at.others_turn()
        ended(at.ask(instructions="x" * 2_000_000))
        for each in asking:
            each.result()
