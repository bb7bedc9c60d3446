"""The row in which Redis is set to forget: without a file at its start, and by eviction while servers run."""

from __future__ import annotations

import time

from redis import Redis

from benchmarks.servers import REPOSITORY
from benchmarks.trial.load import Load
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Trial, running
from tests.support.process import StartError
from tests.support.stack import PACKAGES, LiveStack
from tests.support.valkey import PATIENCE, Valkey
from tests.support.waiting import wait_until


def eviction(trial: Trial) -> Outcome:
    """Start on a Redis without persistence, and change the settings of another under load: both are noticed."""
    refused = _is_refused(trial)
    with (
        Valkey(trial.folder / "store") as database,
        Redis.from_url(f"{database.url}?{PATIENCE}") as admin,
        running(trial, database, LiveStack) as site,
    ):
        load = Load(site.address)
        with load.working():
            time.sleep(2)
            noticed: dict[str, float] = {}
            for name, wrong, right in (
                ("appendonly", "no", "yes"),
                ("maxmemory-policy", "allkeys-lru", "noeviction"),
            ):
                admin.config_set("maxmemory", "1gb")
                admin.config_set(name, wrong)
                began = time.monotonic()
                wait_until(lambda: site.report()["status"] == "not_ready")
                noticed[name] = time.monotonic() - began
                trial.say(f"{name} {wrong}: noticed after {noticed[name]:.1f} s")
                admin.config_set(name, right)
                ready = site.until_ready()
        outcome = site.outcome("start with `appendonly no`, then it and `allkeys-lru` under load", load)
    outcome.ready_seconds = ready
    outcome.notes.append(f"`allkeys-lru` noticed after {noticed['maxmemory-policy']:.0f} s")
    if not refused:
        outcome.faults.append("a server started on a Redis that forgets")
    outcome.judge()
    return outcome


def _is_refused(trial: Trial) -> bool:
    """Whether a server does not start on a Redis without an append-only file."""
    with Valkey(trial.folder / "forgetful", "--appendonly", "no") as database:
        env = {"INFERENCE_URL": "http://127.0.0.1:9/v1", "PYTHONPATH": PACKAGES, **database.environment}
        template = REPOSITORY / "templates" / "redis" / "config.yaml"
        server = LiveStack(template, env, trial.folder / "refused", trial.host)
        try:
            server.start()
        except StartError:
            return "may lose responses" in server.tail()
        server.stop()
        return False
