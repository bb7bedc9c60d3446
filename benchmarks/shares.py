"""The share of the store's server in the CPU time of a request: how many servers one store can serve."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.servers import REPOSITORY, cpu_seconds
from tests.support.database import DatabaseServer
from tests.support.stack import LiveStack
from tests.support.strict import read_sse
from tests.support.upstream import UpstreamProcess

type Json = dict[str, Any]

CLIENTS: Final = 8
REQUESTS: Final = 40  # per client
MODEL: Final = "local/fast-32"
FORMS: Final[Mapping[str, Json]] = {
    "whole": {},
    "streamed": {"stream": True},
    "in the background, streamed": {"background": True, "stream": True},
}
IDLE: Final = 3.0  # seconds without requests


@dataclass
class Share:
    """CPU seconds per request, of the server and of its store's server."""

    ours: float
    theirs: float


@dataclass
class _Spent:
    ours: float = field(default=0.0, init=False)
    theirs: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)


def shares(store: DatabaseServer, template: str, env: Mapping[str, str], folder: Path) -> dict[str, Share]:
    """Measure each form of request, by name; `env` configures the template's store."""
    with (
        UpstreamProcess(folder / f"upstream-{template}.log") as model,
        LiveStack(
            REPOSITORY / "templates" / template / "config.yaml",
            {"INFERENCE_URL": model.client.base_url, "PYTHONPATH": str(REPOSITORY), **env},
            folder / f"stack-{template}",
        ) as stack,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        list(clients.map(lambda _: _ask(stack, {}, 3), range(CLIENTS)))
        with _spending(stack, store) as idle:
            time.sleep(IDLE)
        found: dict[str, Share] = {}
        for name, form in FORMS.items():
            with _spending(stack, store) as spent:
                list(clients.map(lambda _, form=form: _ask(stack, form, REQUESTS), range(CLIENTS)))
            seconds_ratio = spent.seconds / idle.seconds
            found[name] = Share(
                (spent.ours - idle.ours * seconds_ratio) / (CLIENTS * REQUESTS),
                (spent.theirs - idle.theirs * seconds_ratio) / (CLIENTS * REQUESTS),
            )
        return found


@contextmanager
def _spending(stack: LiveStack, store: DatabaseServer) -> Iterator[_Spent]:
    spent = _Spent()
    begun, ours, theirs = time.perf_counter(), cpu_seconds(stack.pid), cpu_seconds(store.pid)
    yield spent
    spent.seconds = time.perf_counter() - begun
    spent.ours, spent.theirs = cpu_seconds(stack.pid) - ours, cpu_seconds(store.pid) - theirs


def _ask(stack: LiveStack, form: Json, count: int) -> None:
    with httpx.Client(base_url=f"{stack.base_url}/v1", timeout=60, trust_env=False) as client:
        for _ in range(count):
            answer = client.post("/responses", json={"model": MODEL, "input": "Hello", **form}).raise_for_status()
            ended = read_sse(answer.content).events[-1]["response"] if form else answer.json()
            assert ended["status"] == "completed", ended


def table(found: Mapping[str, Mapping[str, Share]]) -> Sequence[str]:
    """Return the lines of the table, by the store's name."""
    return [
        "**what a short request costs its server and its store's**",
        "",
        "| store | request | CPU of the server | CPU of the store's server | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
        *(
            f"| {store} | {form} | {share.ours * 1e3:.1f} ms | {share.theirs * 1e3:.2f} ms "
            f"| {share.ours / share.theirs:.0f} |"
            for store, forms in found.items()
            for form, share in forms.items()
        ),
        "",
    ]
