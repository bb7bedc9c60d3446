"""Two servers behind nginx, with one store and one model server, and what became of the requests to them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.servers import REPOSITORY
from benchmarks.trial.load import MODEL, Load
from benchmarks.trial.outcome import Outcome
from tests.support.database import DatabaseServer
from tests.support.log_lines import documented
from tests.support.nginx import Nginx
from tests.support.stack import PACKAGES, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until

type Json = dict[str, Any]

TEMPLATES: Final[Mapping[str, str]] = {"sqlite": "starter", "redis": "redis", "postgres": "postgres"}
"""The template of each kind of store."""
BEHIND: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
LISTENS: Final = "127.0.0.1:8320"
WORDS: Final = 10
INTERVAL: Final = 0.02
SHORT_INTERVAL: Final = 0.06
"""The same in the short form: at each moment as many requests are under way, and fewer have to be computed."""
UNFINISHED: Final = ("queued", "in_progress")
_GRACE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One row on one store.

    Attributes:
        row: the name of the row.
        store: the kind of the store.
        short: whether this is the short form.
        folder: a folder for the files of all servers.
        host: the host that runs the servers.
        say: shows progress.
    """

    row: str
    store: str
    short: bool
    folder: Path
    host: Host
    say: Callable[[str], None]

    def outcome(self, what: str) -> Outcome:
        """Return an empty outcome."""
        return Outcome(self.row, self.store, what)


class Site[Server: LiveStack]:
    """Two running servers and what is around them.

    Attributes:
        trial: the row that runs.
        database: the store's server; None on SQLite.
        servers: the two servers.
        model: the scripted model server.
        address: the root URL of the nginx.
    """

    def __init__(
        self,
        trial: Trial,
        database: DatabaseServer | None,
        servers: Sequence[Server],
        model: Upstream,
        address: str,
    ) -> None:
        self.trial = trial
        self.database = database
        self.servers = servers
        self.model = model
        self.address = address

    def restart(self, server: Server, stop: Callable[[Server], object]) -> float:
        """Stop a server, start it again at its address, and return the seconds from its start until it was ready."""
        port = server.port
        stop(server)
        time.sleep(1)
        began = time.monotonic()
        server.start(port)
        wait_until(server.is_ready)
        return time.monotonic() - began

    def until_ready(self) -> float:
        """Wait until all servers are ready, and return the seconds for which that took."""
        began = time.monotonic()
        wait_until(lambda: all(server.is_ready() for server in self.servers))
        return time.monotonic() - began

    def report(self, number: int = 0) -> Json:
        """Return what a server says of its readiness."""
        url = f"{self.servers[number].base_url}/v1/ready"
        found: Json = httpx.get(url, timeout=60, trust_env=False, verify=False).json()  # noqa: S501 (plain HTTP)
        return found

    def outcome(self, what: str, *loads: Load) -> Outcome:
        """Return what has become of the requests of these loads, once no background response runs any more."""
        outcome = self.trial.outcome(what)
        sent = [each for load in loads for each in load.sent]
        outcome.sent = len(sent)
        outcome.failed = Counter(each.failure for each in sent if each.failure)
        stored = self._settled()
        acknowledged = {each.response_id for each in sent if each.response_id}
        outcome.acknowledged = len(acknowledged)
        completed = {each["id"] for each in stored if each["status"] == "completed"}
        outcome.lost = len(acknowledged - completed)
        kept = Counter(_input(each) for each in stored)
        asked = Counter(str(each.body["messages"][-1]["content"]) for each in self.model.requests(MODEL))
        # A background response is continued by another server, with the same request to the model server.
        outcome.doubled = sum(
            kept[each.name] > 1 or (each.kind != "background" and asked[each.name] > 1) for each in sent
        )
        outcome.logged = self.logged()
        return outcome

    def logged(self) -> Counter[str]:
        """Return the documented warnings and errors in the servers' logs, with their number."""
        found: Counter[str] = Counter()
        act_on = [line for line, levels in documented().items() if levels - {"INFO"}]
        # A line that another one begins with would count for both.
        act_on.sort(key=len, reverse=True)
        expected = re.compile("|".join(map(re.escape, act_on)))
        for server in self.servers:
            for line in server.log.read_text(errors="replace").splitlines():
                if re.search(r"\b(WARNING|ERROR)\b", line) and (match := expected.search(line)):
                    found[match[0]] += 1
        return found

    def stored(self) -> list[Json]:
        """Return all stored responses."""
        found: list[Json] = []
        query: dict[str, str] = {"limit": "100"}
        with httpx.Client(timeout=60, trust_env=False, verify=False) as http:  # noqa: S501 (plain HTTP)
            while True:
                page = http.get(f"{self.address}/v1/responses", params=query).raise_for_status().json()
                found += page["data"]
                if not page["has_more"]:
                    return found
                query["after"] = page["last_id"]

    def _settled(self) -> list[Json]:
        """Return all stored responses, once none of them runs any more."""
        found: list[Json] = []

        def settled() -> bool:
            nonlocal found
            found = self.stored()
            return not any(each["status"] in UNFINISHED for each in found)

        wait_until(settled, every=0.5)
        return found


def _input(response: Json) -> str:
    """Return the text of the request."""
    [item] = response["input"]
    return str(item["content"][0]["text"])


type Make[Server: LiveStack] = Callable[[Path, dict[str, str], Path, Host], Server]
"""Prepares a server, by its configuration, its environment, the folder of its state, and its host."""


@contextmanager
def running[Server: LiveStack](
    trial: Trial, database: DatabaseServer | None, make: Make[Server], environment: Mapping[str, str] | None = None
) -> Iterator[Site[Server]]:
    """Run two servers behind nginx.

    Args:
        database: the store's running server; None on SQLite.
        make: prepares a server.
        environment: the variables that configure the template for the store, if they are not the database's own.
    """
    template = REPOSITORY / "templates" / TEMPLATES[trial.store] / "config.yaml"
    config = variant(template, trial.folder / "config.yaml", lambda config: _share_file(config, trial))
    nginx = (REPOSITORY / "templates" / "scale-out" / "nginx.conf").read_text()
    with ExitStack() as stack:
        model = stack.enter_context(UpstreamProcess(trial.folder / "upstream.log")).client
        model.script(MODEL, reply(text(*["word "] * WORDS), interval=SHORT_INTERVAL if trial.short else INTERVAL))
        env = {"INFERENCE_URL": model.base_url, "FINISH_SECONDS": "30", "PYTHONPATH": PACKAGES}
        env |= environment or (_address(trial, database) if database else {})
        servers = [make(config, env, trial.folder / f"server-{n}", trial.host) for n in (1, 2)]
        for server in servers:
            stack.callback(server.stop, _GRACE)
            server.start()
        behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(BEHIND, servers, strict=True)}
        address = stack.enter_context(Nginx(nginx, trial.folder, LISTENS, behind)).base_url
        site = Site(trial, database, servers, model, address)
        site.until_ready()
        yield site


def _address(trial: Trial, database: DatabaseServer) -> Mapping[str, str]:
    """Return the variables that name the store; unlike those of tests, they leave the timeouts as they are."""
    return {"REDIS_URL": database.url} if trial.store == "redis" else database.environment


def _share_file(config: Json, trial: Trial) -> None:
    if trial.store == "sqlite":
        responses_config(config)["store"]["path"] = str(trial.folder / "store" / "responses.db")
