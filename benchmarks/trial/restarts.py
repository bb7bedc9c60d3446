"""Rows in which a server is replaced by SIGTERM, or killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.trial.load import MODEL, Load
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Site, Trial, running
from tests.support.stack import LiveStack
from tests.support.stores import serving

_GRACE: Final = 60.0


def replacement(trial: Trial) -> Outcome:
    """Replace servers by SIGTERM, one after the other: no request fails."""
    times = 2 if trial.short else 20
    with _site(trial) as site:
        load = Load(site.address)
        with load.working():
            ready = [_restarted(site, number, times, "stopped") for number in range(times)]
        outcome = site.outcome(f"{times} times SIGTERM", load)
    outcome.ready_seconds = max(ready)
    outcome.notes.append(f"longest request {max(each.seconds for each in load.sent):.1f} s")
    outcome.judge(no_failure=True)
    return outcome


def kill(trial: Trial) -> Outcome:
    """Kill servers, one after the other: only what they had begun to work on, or what was on its way, fails."""
    times = 2 if trial.short else 10
    with _site(trial) as site:
        load = Load(site.address)
        with load.working():
            ready = [_restarted(site, number, times, "killed") for number in range(times)]
        outcome = site.outcome(f"{times} times SIGKILL", load)
        asked = Counter(str(each.body["messages"][-1]["content"]) for each in site.model.requests(MODEL))
    outcome.ready_seconds = max(ready)
    failed = [each for each in load.sent if each.failure]
    begun = sum(each.received or asked[each.name] > 0 for each in failed)
    outcome.notes.append(f"{begun} of these had begun, {len(failed) - begun} were on their way to the killed server")
    outcome.judge()
    return outcome


@contextmanager
def _site(trial: Trial) -> Iterator[Site[LiveStack]]:
    with serving(trial.store, trial.folder / "store") as database, running(trial, database, LiveStack) as site:
        yield site


def _restarted(site: Site[LiveStack], number: int, times: int, how: str) -> float:
    """Restart a server under load, and return the seconds from its start until it was ready."""
    time.sleep(1)
    server = site.servers[number % 2]
    ready = site.restart(server, LiveStack.kill if how == "killed" else lambda each: each.stop(_GRACE))
    site.trial.say(f"{number + 1} of {times} {how}, ready after {ready:.1f} s")
    return ready
