"""Clients that do not read the responses that they requested."""

from contextlib import ExitStack
from typing import Final

from tests.support.leaver import Leaver
from tests.support.upstream import reply, text

from .attacker import Attacker, Attacks, ended

ATTACKS: Final = Attacks()
READERS: Final = 60
BUFFER: Final = 32_768
FILE: Final = 8 * 2**20
WORDS: Final = "word " * 1_000
CHUNKS: Final = 600


def stall(at: Attacker, path: str, begin: bytes) -> None:
    """Start many readers that then stall, while the other user continues."""
    with ExitStack() as open_all:
        for _ in range(READERS):
            open_all.enter_context(Leaver(at.stack, None, BUFFER, path, at.headers)).read_until(begin)
        at.others_turn()


@ATTACKS.add()
def stalled_downloads_of_a_file(at: Attacker) -> None:
    path = f"/containers/{at.container()}/files"
    answer = at.wire.http.post(path, files={"file": ("large.bin", b"x" * FILE)})
    assert answer.status_code == 200, answer.text
    stall(at, f"/v1{path}/{answer.json()['id']}/content", b"content-length: %d\r\n" % FILE)


@ATTACKS.add(replay="?stream=true", whole="", items="/input_items")
def stalled_readers_of_a_large_response(at: Attacker, case: str) -> None:
    at.upstream.script("long", reply(text(*[WORDS] * CHUNKS)))
    said = {"type": "input_text", "text": WORDS * CHUNKS}
    made = ended(at.ask(said, model="local/long"))
    stall(at, f"/v1/responses/{made['id']}{case}", b"HTTP/1.1 200")
