"""Batches of this project beside those of other servers: the hosts' own, and those of LiteLLM's proxy.

All servers run at the same time, in front of one scripted model server that answers at once, and run the same batch of
chat completions in turn. Then each gets SIGKILL in the middle of a batch whose lines take a while, and is started again
with its state. A server that cannot be installed, or refuses the batch, has a line that says so. Linux only.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import openai

from benchmarks.rivals.environments import MissingError, environment
from benchmarks.rivals.report import ratio, shown
from benchmarks.rivals.servers import Rival, litellm
from benchmarks.servers import TEMPLATE, cpu_seconds, host_environment, stored_bytes, use_builtin
from tests.support.process import StartError
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until

type Json = dict[str, Any]

RESPONSES: Final = "/v1/responses"
CHAT: Final = "/v1/chat/completions"
ECHO: Final = "echo"
SLOW: Final = "slow"
ENDED: Final = ("completed", "failed", "expired", "cancelled")
PATIENCE: Final = 7_200.0
_POLL_SECONDS: Final = 0.2
_HOSTS_BATCHES: Final[dict[Host, Json]] = {
    "llama_stack": {"kvstore": {"backend": "kv_default", "namespace": "batches"}},
    "ogx": {"sqlstore": {"backend": "sql_default", "table_name": "batches"}},
}
RATE, CPU, BYTES, OF_RESPONSES = "lines a second", "CPU a line", "bytes stored a line", "a batch of responses"
UNITS: Final = {RATE: "{:.1f}", CPU: "{:.1f} ms", BYTES: "{:,.0f}"}
"""How the measured values are shown."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the comparison.

    Attributes:
        lines: lines of a measured batch.
        rounds: measured batches of each server.
        killed: lines of the batch whose server is killed.
        slow_seconds: how long the model takes for each of them.
        patience: seconds after the restart until this batch must have ended.
    """

    lines: int
    rounds: int
    killed: int
    slow_seconds: float
    patience: float


FULL: Final = Size(lines=500, rounds=3, killed=100, slow_seconds=1.0, patience=60.0)
SHORT: Final = Size(lines=60, rounds=1, killed=40, slow_seconds=1.0, patience=30.0)


class RefusedError(Exception):
    """A server does not run a batch."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a batch whose server was killed.

    Attributes:
        status: the last status of the batch.
        lines: lines of the batch.
        answered: lines that are in the output file, each once.
        waited: seconds from the restart to the end of the batch, or to the end of the patience.
        requests: requests that the model server got.
    """

    status: str
    lines: int
    answered: int
    waited: float
    requests: int

    def __str__(self) -> str:
        after = f"`{self.status}` {self.waited:.0f} s after the restart"
        return f"{self.answered} of {self.lines} lines; {after}; {self.requests} requests to the model"


def body_of(endpoint: str, model: str, number: int, characters: int = 0) -> Json:
    """Return the body of a request, whose text is longer by so many characters."""
    said = f"number {number}{' ' * characters}"
    if endpoint == RESPONSES:
        return {"model": model, "input": said}
    return {"model": model, "messages": [{"role": "user", "content": said}]}


def begun(client: openai.OpenAI, endpoint: Any, model: str, lines: int, characters: int = 0) -> str:
    """Upload an input file, whose lines are longer by so many characters; create its batch, and return its id."""
    requests = (
        {"custom_id": f"line-{n}", "method": "POST", "url": endpoint, "body": body_of(endpoint, model, n, characters)}
        for n in range(lines)
    )
    content = "\n".join(map(json.dumps, requests)).encode()
    # LiteLLM reads the header, which tells it whose file it is; others ignore it.
    headers = {"x-litellm-model": model}
    file = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch", extra_headers=headers)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h").id


def has_ended(client: openai.OpenAI, batch_id: str) -> bool:
    """Return whether a batch has ended."""
    return client.batches.retrieve(batch_id).status in ENDED


def run_batch(client: openai.OpenAI, endpoint: str, model: str, lines: int) -> None:
    """Run a batch to its end; RefusedError if the server does not run it, or not all of its lines."""
    try:
        batch_id = begun(client, endpoint, model, lines)
        wait_until(lambda: has_ended(client, batch_id), PATIENCE, _POLL_SECONDS)
        ended = client.batches.retrieve(batch_id)
    except openai.APIStatusError as error:
        raise RefusedError(refusal(error.status_code, error.response.text)) from error
    counts = ended.request_counts
    if not counts or counts.completed != lines:
        raise RefusedError(f"{ended.status}: {counts.completed if counts else 0} of {lines} lines")


def refusal(status: int, body: str) -> str:
    """Return what a server said in place of a batch: the status, and the first line of its message."""
    with suppress(ValueError, AttributeError):
        found = json.loads(body)
        error = found.get("error") or found.get("detail") or found
        body = error.get("message", body) if isinstance(error, dict) else str(error)
    return f"refused with {status}: {' '.join(body.split())[:300]}"


def _stack(host: Host, change: Callable[[Json, Host], None]) -> Callable[[Path, str, Path], LiveStack]:
    def opened(home: Path, url: str, folder: Path) -> LiveStack:
        config = variant(TEMPLATE, folder / "config.yaml", lambda found: change(found, host))
        return LiveStack(config, host_environment(f"{url}/v1"), folder / "state", host, home / "bin" / "python")

    return opened


def _ours(config: Json, _: Host) -> None:
    responses_config(config)["batches"] = {}


def _hosts(config: Json, host: Host) -> None:
    use_builtin(config)
    config["apis"].append("batches")
    provider = {"provider_id": "batches", "provider_type": "inline::reference", "config": _HOSTS_BATCHES[host]}
    config["providers"]["batches"] = [provider]


def _litellm(home: Path, url: str, folder: Path) -> LiveStack:
    return litellm(home, url, folder, {name: f"hosted_vllm/{name}" for name in (ECHO, SLOW)})


PEERS: Final = (
    Rival("ours", "this project on llama-stack", "llama-stack", "llama-stack", _stack("llama_stack", _ours), "local/"),
    Rival("ours-ogx", "this project on OGX", "ogx", "ogx", _stack("ogx", _ours), "local/"),
    Rival("builtin", "llama-stack's own", "llama-stack", "llama-stack", _stack("llama_stack", _hosts), "local/"),
    Rival("builtin-ogx", "OGX's own", "ogx", "ogx", _stack("ogx", _hosts), "local/"),
    Rival("litellm", "LiteLLM's proxy", "litellm", "litellm", _litellm, store="nothing"),
)


class Comparison:
    """One run: the servers that take part, and what was found of each.

    Args:
        size: its size.
        folder: for the states of the servers.
    """

    def __init__(self, size: Size, folder: Path) -> None:
        self._size, self._folder = size, folder
        self._running: list[tuple[Rival, LiveStack]] = []
        self.found: dict[str, Json] = {
            each.name: {"title": each.title, "version": each.version, "rounds": []} for each in PEERS
        }

    def run(self) -> None:
        """Measure all servers."""
        with ExitStack() as context:
            model = context.enter_context(UpstreamProcess(self._folder / "upstream.log")).client
            # The hosts' own providers read the list of models when they start.
            model.script(SLOW, reply(text("Done"), delay=self._size.slow_seconds))
            self._start(context, model.url)
            # One batch first: the host's own provider creates its tables meanwhile.
            self._each(lambda peer, server: self._measure(peer, server, 8))
            for _ in range(self._size.rounds):
                self._each(self._round)
            for peer, server in self._running:
                found = self.found[peer.name]
                found[OF_RESPONSES] = self._of_responses(peer, server)
                try:
                    found["fate"] = self._kill(peer, server, model)
                except (AssertionError, RefusedError, StartError, openai.APIError) as error:
                    found["fate"] = f"not measured: {str(error)[:200]}"

    def _start(self, context: ExitStack, url: str) -> None:
        for peer in PEERS:
            try:
                server = peer.open(environment(peer.environment), url, self._folder / peer.name)
                context.enter_context(server)
            except (MissingError, StartError) as error:
                self.found[peer.name]["error"] = str(error).strip().splitlines()[-1]
                continue
            self._running.append((peer, server))

    def _each(self, measured: Callable[[Rival, LiveStack], object]) -> None:
        """Measure all in turn. A server that refuses takes no further part."""
        for peer, server in list(self._running):
            try:
                measured(peer, server)
            except RefusedError as error:
                self.found[peer.name]["error"] = str(error)
                self._running.remove((peer, server))

    def _round(self, peer: Rival, server: LiveStack) -> None:
        self.found[peer.name]["rounds"].append(self._measure(peer, server, self._size.lines))

    def _measure(self, peer: Rival, server: LiveStack, lines: int) -> Json:
        stored, cpu, began = stored_bytes(server.state_dir), cpu_seconds(server.pid), time.perf_counter()
        with server.client() as client:
            run_batch(client, CHAT, f"{peer.prefix}{ECHO}", lines)
        seconds, cpu = time.perf_counter() - began, cpu_seconds(server.pid) - cpu
        stored = stored_bytes(server.state_dir) - stored
        return {RATE: lines / seconds, CPU: cpu / lines * 1000, BYTES: stored / lines}

    def _of_responses(self, peer: Rival, server: LiveStack) -> str:
        began = time.perf_counter()
        try:
            with server.client() as client:
                run_batch(client, RESPONSES, f"{peer.prefix}{ECHO}", self._size.lines)
        except RefusedError as error:
            return str(error)
        return f"{self._size.lines / (time.perf_counter() - began):.1f} lines a second"

    def _kill(self, peer: Rival, server: LiveStack, model: Upstream) -> Fate:
        """Kill a server as soon as a quarter of the lines of a batch have been asked for, and start it again."""
        size, before = self._size, len(model.requests(SLOW))
        with server.client() as client:
            batch_id = begun(client, CHAT, f"{peer.prefix}{SLOW}", size.killed)
            wait_for_requests(client, batch_id, model, before + size.killed // 4)
        server.kill()
        server.start(server.port)
        began = time.monotonic()
        with server.client() as client:
            with suppress(AssertionError):
                wait_until(lambda: has_ended(client, batch_id), size.patience, _POLL_SECONDS)
            waited, ended = time.monotonic() - began, client.batches.retrieve(batch_id)
            output = client.files.content(ended.output_file_id).text if ended.output_file_id else ""
        return Fate(ended.status, size.killed, answered(output), waited, len(model.requests(SLOW)) - before)


def wait_for_requests(client: openai.OpenAI, batch_id: str, model: Upstream, count: int) -> None:
    """Wait until the slow model has got this number of requests; RefusedError if the batch has ended without them."""

    def are_there() -> bool:
        return len(model.requests(SLOW)) >= count

    wait_until(lambda: are_there() or has_ended(client, batch_id))
    if not are_there():
        raise RefusedError(f"`{client.batches.retrieve(batch_id).status}` before the server was killed")


def answered(output: str) -> int:
    """Return how many different lines of a batch are in its output file with an answer of the model."""
    lines = map(json.loads, output.splitlines())
    return len({each["custom_id"] for each in lines if (each.get("response") or {}).get("status_code") == 200})


def cell(rounds: Sequence[Json], first: Sequence[Json], name: str) -> str:
    """Return the median of the rounds, and the median of their ratios to those of the first server."""
    return UNITS[name].format(median(each[name] for each in rounds)) + ratio(rounds, first, name)


def table(found: Json) -> str:
    """Return the measurements as a table with a column for each server, and a line for each that has none."""
    ran = [each for each in found["servers"].values() if not each.get("error")]
    first = ran[0]["rounds"] if ran else []
    rows = [["version", *(each["version"] for each in ran)]]
    rows += [[name, *(cell(each["rounds"], first, name) for each in ran)] for name in UNITS]
    rows += [[OF_RESPONSES, *(each[OF_RESPONSES] for each in ran)]]
    rows += [["server killed in the middle", *(str(each["fate"]) for each in ran)]]
    return shown(found, ["", *(each["title"] for each in ran)], rows)


def compare(size: Size) -> str:
    """Run the comparison, and return its table."""
    at, before = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="batch-peers-") as folder:
        comparison = Comparison(size, Path(folder))
        comparison.run()
    return table({"at": at, "load": [before, os.getloadavg()[0]], "servers": comparison.found})
