"""Short requests that continue or list large objects."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Final

from tests.support.socket_client import SocketClient
from tests.support.upstream import reasoning, reply, text

from .attacker import Attacker, Attacks, ended, refused

ATTACKS: Final = Attacks()
HISTORY_BYTES: Final = 22 * 2**20
"""The limit on a continued history in the attacked stack."""
AT_ONCE: Final = 12
BODY_BYTES: Final = 128 * 2**20
"""The limit on what requests of one user hold in the attacked stack."""
WORDS: Final = "word " * 1_000_000
PART: Final = {"type": "input_text", "text": WORDS}
TIMES: Final = 20


def long_chain(at: Attacker) -> str:
    """Return the id of a response whose history exceeds the limit."""
    response = ended(at.ask(PART))
    for _ in range(4):
        response = ended(at.ask(PART, previous_response_id=response["id"]))
    response_id: str = response["id"]
    return response_id


@ATTACKS.add()
def short_requests_that_continue_a_long_chain(at: Attacker) -> None:
    last = long_chain(at)
    at.others_turn()
    for _ in range(TIMES):
        error = refused(at.wire.post({"model": "local/done", "input": "?", "previous_response_id": last}))
        assert error["code"] == "context_length_exceeded"
    at.others_turn()


@ATTACKS.add()
def short_requests_that_continue_a_long_conversation(at: Attacker) -> None:
    answer = at.wire.http.post("/conversations", json={})
    conversation = answer.json()["id"]
    for _ in range(5):
        item = {"type": "message", "role": "user", "content": [PART]}
        answer = at.wire.http.post(f"/conversations/{conversation}/items", json={"items": [item]})
        assert answer.status_code == 200, answer.text
    at.others_turn()
    for _ in range(TIMES):
        error = refused(at.wire.post({"model": "local/done", "input": "?", "conversation": conversation}))
        assert error["code"] == "context_length_exceeded"
    page = at.wire.http.get(f"/conversations/{conversation}/items", params={"limit": 100}).json()
    assert (len(page["data"]), page["has_more"]) == (2, True)
    at.others_turn()


def stored_items(at: Attacker, count: int) -> list[str]:
    """Return the ids of large stored items."""
    conversation = at.wire.http.post("/conversations", json={}).json()["id"]
    ids = []
    for _ in range(count):
        item = {"type": "message", "role": "user", "content": [PART]}
        answer = at.wire.http.post(f"/conversations/{conversation}/items", json={"items": [item]})
        ids += [each["id"] for each in answer.json()["data"]]
    return ids


@ATTACKS.add(new="", existing="/{id}/items")
def many_references_to_large_items(at: Attacker, case: str) -> None:
    references = [{"type": "item_reference", "id": each} for each in stored_items(at, 4)]

    def refer() -> int:
        conversation = at.wire.http.post("/conversations", json={}).json()["id"]
        path = f"/conversations{case.format(id=conversation)}"
        return at.wire.http.post(path, json={"items": references}).status_code

    with ThreadPoolExecutor(AT_ONCE) as users:
        asking = [users.submit(refer) for _ in range(AT_ONCE)]
        at.others_turn()
        statuses = {each.result() for each in asking}
    assert statuses == {200, 429}, "some are over the limit of what requests hold"


@ATTACKS.add()
def sealed_items_that_multiply(at: Attacker) -> None:
    """A few kilobytes hold megabytes of reasoning, for as long as the model server thinks."""
    at.upstream.script("thinks", reply(reasoning(*["why " * 20_000] * 10), text("So.")))
    response = ended(at.ask(model="local/thinks", include=["reasoning.encrypted_content"]))
    [sealed] = [item for item in response["output"] if item["type"] == "reasoning"]
    assert len(sealed["encrypted_content"]) < 50_000
    # Without the visible reasoning, so that the body stays small.
    seal = {"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]}
    given = [{**seal, "id": f"rs_{number}"} for number in range(24)]
    body = {"model": "local/slow", "input": [*given, {"role": "user", "content": "?"}], "stream": True}
    at.upstream.script("slow", reply(text("never"), hold=0, end="hang"))
    served = 0
    with ExitStack() as open_all:
        for _ in range(TIMES):
            with suppress(ConnectionError):  # a request is refused while its body arrives
                reader = open_all.enter_context(SocketClient(at.stack, body, None, "/v1/responses", at.headers))
                served += reader.read_until(b"HTTP/1.1 200 ", b"HTTP/1.1 429 ") == b"HTTP/1.1 200 "
        at.others_turn()
    thoughts = 24 * 10 * len("why " * 20_000)
    assert 0 < served <= BODY_BYTES // thoughts, f"{served} requests hold {thoughts} bytes of reasoning each"


@ATTACKS.add()
def lists_of_responses_with_large_instructions(at: Attacker) -> None:
    at.upstream.script("listed", reply(text("Listed.")))
    for _ in range(TIMES):
        ended(at.ask(model="local/listed", instructions=WORDS))
    at.others_turn()
    for model in ("local/listed", "local/none"):
        page = at.wire.http.get("/responses", params={"limit": 100, "model": model}).json()
        assert (len(page["data"]), page["has_more"]) == ((2, True) if model == "local/listed" else (0, False))
    at.others_turn()
