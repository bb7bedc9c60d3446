"""The row in which the clock of one server is wrong."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.trial.load import Load
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Site, Trial, running
from tests.support.shifted_stack import ShiftedStack
from tests.support.stores import serving
from tests.support.waiting import wait_until

_DAYS: Final = 31
"""A day more than responses are kept."""

_MANY: Final = 25
"""More responses than may always be deleted."""


def wrong_clock(trial: Trial) -> Outcome:
    """Set the clock of one server a month ahead while it runs: it deletes nothing, and is not ready.

    On SQLite, both servers are then killed and started with the wrong clock, which is all that they know.
    """
    with serving(trial.store, trial.folder / "store") as database, running(trial, database, ShiftedStack) as site:
        load = Load(site.address)
        with load.working():
            wait_until(lambda: len(load.sent) > _MANY)
            site.servers[1].shift(_DAYS * 86_400)
            wait_until(lambda: site.report(1).get("clock") == "wrong")
            trial.say(f"noticed, after {len(load.sent)} requests")
            time.sleep(5 if trial.short else 20)
            site.servers[1].shift(0)
            ready = site.until_ready()
            time.sleep(2)
        if trial.store == "sqlite":
            _kill_both(site)
        what = f"{_DAYS} days ahead{', then killed and started so' if trial.store == 'sqlite' else ''}"
        outcome = site.outcome(what, load)
    outcome.ready_seconds = ready
    # Neither server takes the other one for dead.
    outcome.judge(no_failure=True)
    return outcome


def _kill_both(site: Site[ShiftedStack]) -> None:
    _start_again(site, _DAYS * 86_400)
    site.trial.say("both are killed and started with the wrong clock")
    wait_until(lambda: site.report().get("sweep") == "held")
    _start_again(site, 0)
    site.until_ready()


def _start_again(site: Site[ShiftedStack], shift: float) -> None:
    """Kill both servers, and start them with another clock: as long as one runs, the others have its time."""
    ports = [server.port for server in site.servers]
    for server in site.servers:
        server.kill()
        server.shift(shift)
    for server, port in zip(site.servers, ports, strict=True):
        server.start(port)
