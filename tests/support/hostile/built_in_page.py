"""Views, lists and streams of the built-in page."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Final

from tests.support.socket_client import SocketClient
from tests.support.upstream import reply, text

from .answers import BUFFER, READERS, stall
from .attacker import Attacker, Attacks, ended, refused

ATTACKS: Final = Attacks()
AT_ONCE: Final = 20
MARKDOWN: Final = {
    "quotes": "> " * 150_000 + "x",
    "brackets": "[" * 150_000 + "](" * 75_000,
    "emphasis": "*a _b " * 60_000,
    "cells": "|" * 500 + "\n" + "|-" * 500 + "|\n" + ("|" * 500 + "\n") * 700,
    "links": "[a](<b" * 60_000,
    "code": "`" * 299_999 + " " + "`a" * 50_000,
}


@ATTACKS.add(**MARKDOWN)
def views_of_markdown_that_takes_long(at: Attacker, case: str) -> None:
    at.upstream.script("writes", reply(text(case)))
    made = ended(at.ask(model="local/writes"))
    with ThreadPoolExecutor(AT_ONCE) as readers:
        reading = [readers.submit(at.wire.http.get, f"/ui/responses/{made['id']}") for _ in range(AT_ONCE)]
        at.others_turn()
        answers = [each.result() for each in reading]
    assert {each.status_code for each in answers} <= {200, 429}, {each.text[:300] for each in answers}
    assert answers[-1].status_code == 429 or answers[-1].json()["items"]


@ATTACKS.add(list="responses/stream?text=x&metadata=a:b&metadata=c", running="live", counts="stats")
def stalled_readers_of_streams_of_the_page(at: Attacker, case: str) -> None:
    with ExitStack() as open_all:
        for _ in range(READERS):
            reader = open_all.enter_context(SocketClient(at.stack, None, BUFFER, f"/v1/ui/{case}", at.headers))
            reader.read_until(b"HTTP/1.1 200", b"HTTP/1.1 429")
        for number in range(40):
            ended(at.ask(metadata={"a": "b", "c": "x" * 500}, instructions=f"{number}" * 1000))
        at.others_turn()


@ATTACKS.add(view="responses/{id}", events="responses/{id}/events?limit=1000", chain="chain/{id}?limit=50")
def stalled_readers_of_views_of_a_long_chain(at: Attacker, case: str) -> None:
    made = {"id": None}
    for _ in range(12):
        said = {"type": "input_text", "text": "word " * 100_000}
        made = ended(at.ask(said, model="local/fast-1000", previous_response_id=made["id"]))
    stall(at, f"/v1/ui/{case.format(id=made['id'])}")


ODD: Final = ("%00", "%ff", "a" * 5_000, "..%2f..", "resp_%00", "%f0%9f%98%80")
NUMBERS: Final = ("-1", "1e9", "9" * 400, "0x1", "1_0", "\u0661", "+1", " 1")
CURSORS: Final = ("f" * 14 + "-x", "-", "0" * 14 + "-" + "a" * 500)
PATHS: Final = ("responses/{}", "chain/{}", "conversations/{}", "responses/{}/events", "responses/{}/requests", "{}/x")
NAMES: Final = ("after", "limit", "status", "from", "to", "metadata", "text", "order")


@ATTACKS.add()
def odd_paths_of_the_page(at: Attacker) -> None:
    for odd, path in product(ODD, PATHS):
        refused(at.wire.http.get(f"/ui/{path.format(odd)}"), 400, 404)


@ATTACKS.add()
def odd_queries_of_the_page(at: Attacker) -> None:
    made = ended(at.ask())["id"]
    of_one = [f"responses/{made}/events", f"responses/{made}/requests", f"chain/{made}"]
    queries = [f"{path}?{name}={odd}" for odd, path, name in product(ODD, ["responses", *of_one], NAMES)]
    places = ("responses?limit=", "responses?from=", "responses?to=", f"{of_one[0]}?after=", f"{of_one[1]}?after=")
    queries += [f"{place}{number}" for place, number in product(places, NUMBERS)]
    queries += [f"responses?after={cursor}" for cursor in CURSORS]
    for query in queries:
        answer = at.wire.http.get(f"/ui/{query}")
        assert answer.status_code in (200, 400), f"{query}: {answer.text[:300]}"


@ATTACKS.add()
def checks_of_readiness_without_a_token(at: Attacker) -> None:
    with ThreadPoolExecutor(AT_ONCE) as clients:
        asking = [clients.submit(at.wire.http.get, "/ready") for _ in range(30 * AT_ONCE)]
        at.others_turn()
        assert {each.result().status_code for each in asking} <= {200, 503}
