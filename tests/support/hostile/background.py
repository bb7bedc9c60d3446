"""Background responses whose rows are large, and clients that follow them without reading."""

from contextlib import ExitStack
from random import Random
from typing import Final

from tests.support.socket_client import SocketClient
from tests.support.upstream import reply, text
from tests.support.waiting import wait_until
from tests.support.wire import checked

from .answers import BUFFER, READERS
from .attacker import Attacker, Attacks, ended, refused
from .large_requests import TOOLS

ATTACKS: Final = Attacks()
LARGE: Final = Random(1).randbytes(5 * 2**20).hex()
"""10 MiB of text that is slow to compress."""
ENDED: Final = ("completed", "incomplete", "failed", "cancelled")
UNREAD: Final = (1, 10, 100, 300)


def begin(at: Attacker, model: str, **body: object) -> str:
    """Start a background response and return its id."""
    answer = at.ask(model=model, background=True, **body)
    assert answer.status_code == 200, answer.text[:1000]
    response_id: str = checked(answer)["id"]
    return response_id


def has_ended(at: Attacker, response_id: str) -> bool:
    """Return whether the response has ended."""
    return at.wire.retrieve(response_id)["status"] in ENDED


@ATTACKS.add()
def background_responses_with_large_instructions(at: Attacker) -> None:
    response_id = begin(at, "local/done", instructions=LARGE)
    wait_until(lambda: has_ended(at, response_id), every=0.5)
    assert at.wire.retrieve(response_id)["status"] == "completed"
    at.others_turn()


@ATTACKS.add()
def large_requests_with_an_idempotency_key(at: Attacker) -> None:
    """The MAC of many values takes long."""
    body, key = {"model": "local/done", "input": "x", "tools": TOOLS}, {"idempotency-key": "large"}
    answers = [at.wire.http.post("/responses", json=body, headers=key) for _ in range(2)]
    assert len({ended(answer)["id"] for answer in answers}) == 1
    refused(at.wire.http.post("/responses", json={**body, "input": "y"}, headers=key), 409)
    at.others_turn()


@ATTACKS.add()
def cancelled_background_responses_with_large_instructions(at: Attacker) -> None:
    at.upstream.script("never", reply(text("Begun."), end="hang"))
    response_id = begin(at, "local/never", instructions=LARGE)
    assert checked(at.wire.http.post(f"/responses/{response_id}/cancel"))["status"] == "cancelled"
    at.others_turn()


@ATTACKS.add(large_rows=LARGE, many_rows="")
def stalled_readers_of_a_running_response(at: Attacker, case: str) -> None:
    """The readers begin at different events, so that they do not stall at the same place."""
    at.upstream.script("runs", reply(text(*["word " * 1_000] * 600), end="hang"))
    response_id = begin(at, "local/runs", instructions=case or None)
    path = f"/v1/responses/{response_id}?stream=true"
    with ExitStack() as open_all:
        for number in range(READERS):
            after = f"&starting_after={UNREAD[number % 4] + number}" if number % 2 and not case else ""
            open_all.enter_context(SocketClient(at.stack, None, BUFFER, path + after, at.headers)).read_until(
                b"HTTP/1.1 200"
            )
        at.others_turn()
        assert at.wire.retrieve(response_id)["status"] == "in_progress"
    at.wire.http.post(f"/responses/{response_id}/cancel")


@ATTACKS.add(dense=LARGE[: 2**21], sparse="word " * 2**21)
def simultaneous_readers_of_large_instructions(at: Attacker, case: str) -> None:
    """Each reader's request decodes the stored instructions, which take 10 MiB, compressed or not."""
    response = ended(at.ask(instructions=case))
    at.others_turn()
    path = f"/v1/responses/{response['id']}?stream=true"
    with ExitStack() as open_all:
        for reader in [
            open_all.enter_context(SocketClient(at.stack, None, BUFFER, path, at.headers)) for _ in range(READERS)
        ]:
            reader.read_until(b"HTTP/1.1 200")
        at.others_turn()
