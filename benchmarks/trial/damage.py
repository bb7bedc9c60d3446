"""The row in which a part of SQLite's file is overwritten."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Final

import httpx

from benchmarks.trial.load import noise, send
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Trial, running
from llama_stack_responses.cli import main
from tests.support.stack import LiveStack
from tests.support.waiting import wait_until

_PAGE_BYTES: Final = 4096
_PAGES: Final = 8
_LETTERS: Final = 40_000
"""Length of a request: the overwritten pages are a small part of the file."""


def damage(trial: Trial) -> Outcome:
    """Overwrite eight pages: the server says so, and most of the responses can be saved."""
    count = 20 if trial.short else 200
    file = trial.folder / "store" / "responses.db"
    with running(trial, None, LiveStack) as site:
        texts = [f"{number} {noise(_LETTERS, number)}" for number in range(count)]
        with httpx.Client(base_url=f"{site.address}/v1", timeout=60, trust_env=False, verify=False) as http:  # noqa: S501
            sent = [send(http, each, "answer") for each in texts]
        ports = [server.port for server in site.servers]
        for server in site.servers:
            server.kill()
        _overwrite(file)
        site.servers[0].start(ports[0])
        wait_until(lambda: site.report().get("integrity") == "damaged")
        trial.say("noticed")
        outcome = trial.outcome(f"{_PAGES} pages overwritten, then `recover`")
        outcome.logged = site.logged()
        site.servers[0].kill()
        _recover(file)
        for server, port in zip(site.servers, ports, strict=True):
            server.start(port)
        outcome.ready_seconds = site.until_ready()
        found = {each["id"] for each in site.stored() if each["status"] == "completed"}
    acknowledged = {each.response_id for each in sent if each.response_id}
    outcome.sent, outcome.acknowledged = count, len(acknowledged)
    outcome.lost = len(acknowledged - found)
    outcome.notes.append("the lost ones were on the overwritten pages")
    if outcome.lost > count // 2:
        outcome.faults.append("less than half was saved")
    return outcome


def _overwrite(file: Path) -> None:
    """Overwrite pages in the middle of the file."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2 // _PAGE_BYTES * _PAGE_BYTES)
        opened.write(os.urandom(_PAGES * _PAGE_BYTES))


def _recover(file: Path) -> None:
    """Save what can be read, as the guide says, and put it in the place of the file."""
    saved = file.with_name("saved.db")
    # The table has standard output for itself.
    with redirect_stdout(sys.stderr):
        if main(["recover", str(file), str(saved)]):
            raise RuntimeError("the command failed")
    for suffix in ("", "-wal", "-shm"):
        file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
    saved.rename(file)
