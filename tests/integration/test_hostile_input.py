"""Hostile input of many kinds from one user while another user sends ordinary requests.

The attacks are in `tests.support.hostile`; each sends requests and checks their answers. These tests check for every
attack that the other user's answers are correct and in time, that the event loop is not blocked, that memory is
bounded, and that the server survives and logs no traceback.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from tests.support.hostile import (
    answers,
    background,
    bodies,
    built_in_page,
    code,
    documents,
    histories,
    host_names,
    large_requests,
    mcp_servers,
    model_servers,
    pages,
    sockets,
    tools,
    words,
)
from tests.support.hostile.attacker import DONE, MODELS, Attacker
from tests.support.loop_holds import LoopHolds
from tests.support.machine_clock import MachineClock
from tests.support.memory import PeakMemory
from tests.support.other_user import OtherUser
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.tokens import Issuer
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import UpstreamProcess
from tests.support.variants import (
    add_containers,
    let_answer_whole,
    let_read,
    open_this_machine,
    responses_config,
    variant,
)
from tests.support.web import Web
from tests.support.wire import Json, Wire

pytestmark = [pytest.mark.live, pytest.mark.extended]

LOOP_SECONDS: Final = 0.5
"""The longest blocking of the event loop, not counting time in which the machine does not run the process."""
SHORTER_SECONDS: Final = 0.2
"""The same for attacks whose work, in the event loop, would hold it for about twice as long."""
SHORTER: Final = frozenset(
    {
        "background responses with large instructions",
        "cancelled background responses with large instructions",
        "large requests with an idempotency key",
    }
)
SERVER_MEGABYTES: Final = 300
"""The limit on the growth of the server process."""
HELD_MEGABYTES: Final = 400
"""The limit of an attack that holds all that a user may hold, 128 MiB, in buffers that are at times copied.

It makes the server grow by 190 or by 325 MB, and by more than 700 if the user may hold everything.
"""
HOLDING: Final = frozenset({"websocket frames on many connections"})
ALL_MEGABYTES: Final = 900
"""The limit on the growth including the processes that read documents and run code."""


def nothing(_: Attacker) -> None:
    """Send nothing, to check that the bounds hold without an attack."""


THROUGH_HOST: Final = (words, bodies, built_in_page, sockets, answers)
"""Attacks on the host's web server, whose data it receives or holds. They run on both hosts."""
PAST_HOST: Final = (
    model_servers,
    large_requests,
    pages,
    documents,
    tools,
    histories,
    background,
    mcp_servers,
    code,
    host_names,
)
"""Attacks on what this package alone does. They run on one host."""
PAST_HOST_TOO: Final = frozenset(
    {
        "views of markdown that takes long",
        "stalled readers of views of a long chain",
        "odd queries of the page",
        "stalled readers of large new responses",
        "unstored histories on many connections",
    }
)
"""The same in the other modules, which have another attack that reaches the host in the same way."""
ATTACKS: Final[dict[str, Callable[[Attacker], None]]] = {
    "nothing": nothing,
    **{name: attack for module in THROUGH_HOST + PAST_HOST for name, attack in module.ATTACKS.items()},
}
ONE_HOST: Final = PAST_HOST_TOO.union(*(module.ATTACKS for module in PAST_HOST))
SMOKE: Final = frozenset({"odd json", "huge websocket message", "page without end", "mcp answer with too much in it"})
"""Short attacks through different parts; the others take turns."""

WHOLE_RUN: Final = frozenset({"large requests", "stalled readers of a running response"})
"""They take a third of the time of all. Similar ones take turns: with idempotency keys, and of new responses."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of an attack."""
    marks = {ONE_HOST: pytest.mark.one_host, SMOKE: pytest.mark.smoke, WHOLE_RUN: pytest.mark.whole_run}
    return [mark for names, mark in marks.items() if name in names]


NAMES: Final = [pytest.param(name, marks=marks_of(name)) for name in ATTACKS]


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """The web server of these tests."""
    with Web() as web:
        yield web


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """The issuer of the users' tokens.

    The hosts' `custom` auth reads the machine's certificates in the event loop at each request, which would dominate
    the measurement.
    """
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def attacked(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    web: Web,
    issuer: Issuer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack with two users, low limits, and every feature that can be attacked."""
    folder = tmp_path_factory.mktemp("attacked")
    # By name, so that each connection to the model server needs a lookup.
    model_server = upstream_process.client.base_url.replace("127.0.0.1", "localhost")
    env = {**stack_env, "INFERENCE_URL": model_server, "SEARXNG_URL": web.url("/searxng")}
    env |= host_names.slow_names(folder)
    config = variant(STARTER, folder / "config.yaml", partial(expose, issuer, web))
    with LiveStack(config, env, folder / "state", host=host) as live:
        with Wire(live, issuer.token("bob", "blue")) as wire:
            wire.create(model="local/echo", input="Whatever is read at first, is read.")
        yield live


def expose(issuer: Issuer, web: Web, config: Json) -> None:
    """Configure a stack for these users and servers, with low limits."""
    add_containers(config)
    open_this_machine(config)
    let_read(config)
    let_answer_whole(config)
    found = responses_config(config)
    found["code_interpreter"] |= {"seconds": 3, "memory_mb": 256, "files_mb": 16, "containers_per_user": 32}
    found["files"] = {"seconds": 3, "request_seconds": 4, "memory_mb": 512}
    found["files"] |= {"max_bytes": 16 * 2**20, "bytes_per_user": mcp_servers.FILE_BYTES}
    found["mcp"] = {"answer_bytes": 2**20, "session_bytes": 4 * 2**20}
    found["limits"] = {
        "output_bytes": model_servers.OUTPUT_BYTES,
        "output_events": 5_000,
        "bodies": {"seconds": 5, "bytes_per_user": histories.BODY_BYTES},
        "websocket": {"remembered_bytes_per_user": 96 * 2**20},
        "answers": {"bytes_per_user": answers.ANSWER_BYTES, "streams_per_user": built_in_page.STREAMS},
        "history_bytes": histories.HISTORY_BYTES,
    }
    found["fetch"] |= {"lookup_seconds": 1}
    local = config["providers"]["inference"][0]
    local["config"]["network"] = {"idle_seconds": 0.001}
    hostile = {**local, "provider_id": "hostile", "config": {"base_url": web.url(MODELS)}}
    config["providers"]["inference"].append(hostile)
    config["server"]["auth"] = {"provider_config": issuer.provider_config}


@pytest.fixture(scope="module")
def clock() -> Iterator[MachineClock]:
    """The machine's clock."""
    with MachineClock() as clock:
        yield clock


@pytest.fixture
def other_user(
    attacked: LiveStack, issuer: Issuer, upstream_process: UpstreamProcess, clock: MachineClock
) -> Iterator[OtherUser]:
    """The other user."""
    token, model_server = issuer.token("bob", "blue"), upstream_process.child.pid
    with OtherUser(attacked, token, clock, model_server) as other_user:
        yield other_user


@pytest.fixture
def attacker(
    attacked: LiveStack, upstream_process: UpstreamProcess, web: Web, issuer: Issuer, host: Host, other_user: OtherUser
) -> Iterator[Attacker]:
    """The attacking user, without pages and containers yet."""
    web.reset()
    web.say_json(f"{MODELS}/models", {"object": "list", "data": []})
    upstream = upstream_process.client  # a reset would abort the other user's answers
    upstream.script("done", DONE)
    token = issuer.token("mallory", "red")
    with Wire(attacked, token, idle_seconds=2.0) as wire:
        yield Attacker(attacked, token, wire, upstream, web, host, other_user.wait_for_a_round)
        for container in wire.http.get("/containers", params={"limit": 100}).json()["data"]:
            assert wire.http.delete(f"/containers/{container['id']}").status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_hostile_input_does_not_affect_the_other_user(attacker: Attacker, other_user: OtherUser, name: str) -> None:
    stack = attacker.stack
    said_before, holds, memory = stack.log.stat().st_size, LoopHolds(stack.log), PeakMemory(stack.pid)
    with other_user.watched():
        ATTACKS[name](attacker)
    holds.assert_none_above(SHORTER_SECONDS if name in SHORTER else LOOP_SECONDS)
    assert memory.of_server() < (HELD_MEGABYTES if name in HOLDING else SERVER_MEGABYTES)
    assert memory.of_all() < ALL_MEGABYTES
    assert_no_traceback(stack.log, said_before)
