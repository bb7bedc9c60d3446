"""Views, lists and streams of the built-in page."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Final

from tests.support.socket_client import SocketClient
from tests.support.upstream import reply, text

from .answers import BUFFER, OVER_LIMIT, stall
from .attacker import Attacker, Attacks, ended, refused

ATTACKS: Final = Attacks()
AT_ONCE: Final = 20
SERVED: Final = b"HTTP/1.1 200 "
STREAMS: Final = 128
"""The limit on open streams of one user of the attacked stack."""
VIEWERS: Final = 3
"""One more than one user has rendered at a time."""
MARKDOWN: Final = {
    "quotes": "> " * 49_000 + "x",
    "brackets": "[" * 66_000 + "](" * 16_000,
    "emphasis": "*a _b " * 16_000,
    "cells": "|" * 300 + "\n" + "|-" * 300 + "|\n" + ("|" * 300 + "\n") * 300,
    "links": "[a](<b" * 16_000,
    "formulas": r"\(\frac{a_1^2}{\sqrt{b}}\) $x_1$ " * 2_800,
    "nested formulas": (r"\(" + "{" * 900 + "a" + "}" * 900 + r"\) ") * 50,
    "highlighted": ("```python\n" + "f'{" * 4_000 + "\n```\n\n") * 7,
    "code": "`" * 50_000 + " " + "`a" * 20_000,
}
"""Texts of almost 100,000 characters: longer ones are not rendered."""


@ATTACKS.add(**MARKDOWN)
def views_of_markdown_that_takes_long(at: Attacker, case: str) -> None:
    at.upstream.script("writes", reply(text(case)))
    response = ended(at.ask(model="local/writes"))
    with ThreadPoolExecutor(VIEWERS) as readers:
        reading = [readers.submit(at.wire.http.get, f"/ui/responses/{response['id']}") for _ in range(VIEWERS)]
        at.others_turn()
        answers = [each.result() for each in reading]
    assert {each.status_code for each in answers} <= {200, 429}, {each.text[:300] for each in answers}
    assert answers[-1].status_code == 429 or answers[-1].json()["items"]


@ATTACKS.add(list="responses/stream?text=x&metadata=a:b&metadata=c", running="live", counts="stats")
def stalled_readers_of_streams_of_the_page(at: Attacker, case: str) -> None:
    """Streams over the limit of the user are refused."""
    served = 0
    with ExitStack() as open_all:
        for _ in range(STREAMS + AT_ONCE):
            reader = open_all.enter_context(SocketClient(at.stack, None, BUFFER, f"/v1/ui/{case}", at.headers))
            served += reader.read_until(SERVED, OVER_LIMIT) == SERVED
        for number in range(40):
            ended(at.ask(metadata={"a": "b", "c": "x" * 500}, instructions=f"{number}" * 1000))
        at.others_turn()
    assert 0 < served <= STREAMS


VIEWS: Final = {"responses/{id}": 20, "responses/{id}/events?limit=1000": 20, "chain/{id}?limit=50": 60}
"""Readers of each view. Those of the chain, with all its texts, would together exceed the limit on the server's growth."""


@ATTACKS.add()
def stalled_readers_of_views_of_a_long_chain(at: Attacker) -> None:
    created = {"id": None}
    for _ in range(12):
        part = {"type": "input_text", "text": "word " * 100_000}
        created = ended(at.ask(part, model="local/fast-1000", previous_response_id=created["id"]))
    for view, readers in VIEWS.items():
        stall(at, f"/v1/ui/{view.format(id=created['id'])}", readers=readers)


ODD: Final = ("%00", "%ff", "a" * 5_000, "..%2f..", "resp_%00", "%f0%9f%98%80")
NUMBERS: Final = ("-1", "1e9", "9" * 400, "0x1", "1_0", "\u0661", "+1", " 1")
CURSORS: Final = ("f" * 14 + "-x", "-", "0" * 14 + "-" + "a" * 500)
PATHS: Final = ("responses/{}", "chain/{}", "conversations/{}", "responses/{}/events", "responses/{}/requests", "{}/x")
NAMES: Final = ("after", "limit", "status", "from", "to", "metadata", "text", "order")


@ATTACKS.add()
def odd_paths_of_the_page(at: Attacker) -> None:
    for odd, path in product(ODD, PATHS):
        known = path.startswith("responses/") and "%2f" not in odd
        refused(at.wire.http.get(f"/ui/{path.format(odd)}"), *((400,) if known else (400, 404)))


@ATTACKS.add()
def odd_queries_of_the_page(at: Attacker) -> None:
    response_id = ended(at.ask())["id"]
    of_one = [f"responses/{response_id}/events", f"responses/{response_id}/requests", f"chain/{response_id}"]
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
