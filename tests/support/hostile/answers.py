"""Clients that do not read the responses that they requested."""

from contextlib import ExitStack
from typing import Final

import httpx

from tests.support.socket_client import SocketClient
from tests.support.upstream import reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Json, checked

from .attacker import Attacker, Attacks, ended

ATTACKS: Final = Attacks()
READERS: Final = 60
INSTRUCTIONS: Final = "word " * 2_000_000
"""Text of which the kernel's buffers, up to 4 MiB for a connection, hold a part only."""
MANY: Final = 36
"""Readers whose answers together are larger than the limit on the growth of the server process."""
ANSWER_BYTES: Final = 96 * 2**20
"""The limit on large answers to one user of the attacked stack."""
OVER_LIMIT: Final = b"HTTP/1.1 429 "
REFUSED: Final = 4
"""Requests refused one after another, when others are served, after which no more are sent: the limit holds."""
BUFFER: Final = 32_768
FILE: Final = 8 * 2**20
WORDS: Final = "word " * 1_000
CHUNKS: Final = 600


def stall(
    at: Attacker,
    path: str,
    begin: bytes = b"HTTP/1.1 200 ",
    *,
    body: Json | None = None,
    key: str | None = None,
    readers: int = READERS,
) -> int:
    """Start readers that then stall, while the other user continues; return how many were refused, as over a limit."""
    headers = {**at.headers, **({"idempotency-key": key} if key else {})}
    served = refused = 0
    with ExitStack() as open_all:
        for _ in range(readers):
            if served and refused >= REFUSED:
                break
            try:
                reader = open_all.enter_context(SocketClient(at.stack, body, BUFFER, path, headers))
                is_served = reader.read_until(begin, OVER_LIMIT) == begin
            except ConnectionError:
                is_served = False  # refused before its body was sent
            served, refused = (served + 1, 0) if is_served else (served, refused + 1)
        at.others_turn()
    assert served
    return refused


@ATTACKS.add()
def stalled_downloads_of_a_file(at: Attacker) -> None:
    path = f"/containers/{at.container()}/files"
    answer = at.wire.http.post(path, files={"file": ("large.bin", b"x" * FILE)})
    assert answer.status_code == 200, answer.text
    stall(at, f"/v1{path}/{answer.json()['id']}/content", b"content-length: %d\r\n" % FILE)


@ATTACKS.add()
def stalled_readers_of_a_large_stream(at: Attacker) -> None:
    """What its events hold together is, for all readers, larger than the limit on the growth of the server process."""
    at.upstream.script("long", reply(text(*[WORDS] * CHUNKS)))
    response = ended(at.ask(model="local/long"))
    stall(at, f"/v1/responses/{response['id']}?stream=true")


@ATTACKS.add(whole="", items="/input_items")
def stalled_readers_of_a_large_response(at: Attacker, case: str) -> None:
    response = ended(at.ask({"type": "input_text", "text": INSTRUCTIONS}, instructions=INSTRUCTIONS))
    assert stall(at, f"/v1/responses/{response['id']}{case}", readers=MANY)


@ATTACKS.add(unstreamed={}, with_a_key={"idempotency-key": "k"}, canceled={"background": True})
def stalled_readers_of_large_new_responses(at: Attacker, case: Json) -> None:
    """The answers repeat the instructions. Those to one key, and to cancelling, have the same response."""
    body = {"model": "local/done", "input": "x", "instructions": INSTRUCTIONS}
    if "background" not in case:
        assert stall(at, "/v1/responses", body=body, key=case.get("idempotency-key"), readers=MANY)
        return
    answers: list[httpx.Response] = []

    def is_created() -> bool:
        answers.append(at.wire.post({**body, **case}))
        return answers[-1].status_code != 429  # while the bodies before it still count for the user

    wait_until(is_created, every=0.5)
    created = checked(answers[-1])
    wait_until(lambda: at.wire.retrieve(created["id"])["status"] == "completed", every=0.5)
    assert stall(at, f"/v1/responses/{created['id']}/cancel", body={}, readers=MANY)
