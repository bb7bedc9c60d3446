"""Durability of batches: the fate of lines whose servers are killed repeatedly.

    .venv/bin/python -m benchmarks.batch_durability          # 20,000 lines, a server killed every few seconds
    .venv/bin/python -m benchmarks.batch_durability --ci     # the short run, which is also a test

Two servers share one real Valkey, or one file of SQLite, and the folder of files. One batch has lines for a model that
answers at once, for one that takes a while, for one that is too busy every now and then, and for one that does not
exist. The servers get SIGKILL in turn, each as soon as further lines have ended since the last kill, and are restarted;
with `--store-too`, so does Valkey, which writes all that it acknowledges to the disk. At the end, each line has to be
in exactly one of the files, once, in order, with its own answer.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import openai

from tests.support.stack import PACKAGES, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, reply, text
from tests.support.valkey import Valkey
from tests.support.variants import open_this_machine, responses_config, variant
from tests.support.waiting import wait_until

type Json = dict[str, Any]

MODELS: Final = ("local/echo", "local/slow", "local/busy")
UNKNOWN: Final = "nobody/here"
_UNKNOWN_EVERY: Final = 50
"""Of so many lines, one names a model that does not exist."""
_STATE: Final = "${env.STATE_DIR:=~/.llama-stack-responses}"
_PATIENCE_SECONDS: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run.

    Attributes:
        lines: number of lines.
        kills: maximum number of kills; None for as many as there is time for.
        every: seconds between a restart and the next kill, at least.
        further: lines that end between two kills, at least.
        slow_seconds: how long the slow model takes.
        store: `redis` or `sqlite`.
        store_too: whether the server of the store is killed too, after each of the others.
    """

    lines: int
    kills: int | None
    every: float
    further: int
    slow_seconds: float
    store: str = "redis"
    store_too: bool = False


FULL: Final = Plan(lines=20_000, kills=None, every=3.0, further=50, slow_seconds=0.2)
CI: Final = Plan(lines=240, kills=5, every=0.0, further=20, slow_seconds=4.0, store="sqlite")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run.

    Attributes:
        kills: number of killed servers, with those of the store.
        lines: number of lines of the input file.
        missing: lines that are in no file.
        twice: lines that are in the files more than once, or responses that several lines have.
        wrong: lines in the wrong file, out of order or with the answer of another one, and false counts.
        seconds: time from the creation of the batch to its end.
    """

    kills: int
    lines: int
    missing: int
    twice: int
    wrong: int
    seconds: float

    @property
    def well(self) -> bool:
        """Whether each line ended once, with its own answer."""
        return not (self.missing or self.twice or self.wrong)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table."""
        return [
            ("lines", str(self.lines)),
            ("servers killed", str(self.kills)),
            ("seconds", f"{self.seconds:.0f}"),
            ("missing (must be 0)", str(self.missing)),
            ("twice (must be 0)", str(self.twice)),
            ("with another answer, order or count (must be 0)", str(self.wrong)),
        ]


def line(number: int) -> Json:
    """Return a line of the input file."""
    model = UNKNOWN if number % _UNKNOWN_EVERY == 0 else MODELS[number % len(MODELS)]
    body = {"model": model, "input": f"number {number}"}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/responses", "body": body}


def said(number: int) -> str:
    """Return what the model answers to a line."""
    model: str = line(number)["body"]["model"]
    return f"number {number}" if model == MODELS[0] else model


def script(model: Upstream, plan: Plan) -> None:
    """Have the models answer as their names say."""
    model.script("slow", reply(text(MODELS[1]), delay=plan.slow_seconds))
    busy = reply(text(MODELS[2]))
    model.script("busy", [*[error(503, "Busy.")] * 5, *[busy] * 200, error(429, "Busy."), *[busy] * 500])


class Asking:
    """Asks any server that answers.

    Args:
        servers: the servers.
    """

    def __init__(self, servers: Sequence[LiveStack]) -> None:
        self._servers = servers

    def get(self, path: str) -> httpx.Response:
        """Return the answer to a request."""
        found: list[httpx.Response] = []

        def answered() -> bool:
            for server in self._servers:
                try:
                    found.append(httpx.get(f"{server.base_url}/v1{path}", timeout=60, trust_env=False))
                except httpx.TransportError:
                    continue
                if found[-1].is_success:
                    return True
            return False

        wait_until(answered)
        return found[-1]

    def batch(self, batch_id: str) -> Json:
        """Return a batch."""
        found: Json = self.get(f"/batches/{batch_id}").json()
        return found

    def lines(self, file_id: str | None) -> list[Json]:
        """Return the lines of a file."""
        return [json.loads(each) for each in self.get(f"/files/{file_id}/content").text.splitlines()] if file_id else []


def judge(ended: Json, output: Sequence[Json], errors: Sequence[Json], plan: Plan) -> tuple[int, int, int]:
    """Return how many lines are missing, there twice, and wrong."""
    names = [each["custom_id"] for each in [*output, *errors]]
    refused = {f"line-{number}" for number in range(plan.lines) if line(number)["body"]["model"] == UNKNOWN}
    expected = [f"line-{number}" for number in range(plan.lines)]
    ids = [each["response"]["body"]["id"] for each in output]
    wrong = sum(
        [
            [each["custom_id"] for each in output] != [name for name in expected if name not in refused],
            [each["custom_id"] for each in errors] != [name for name in expected if name in refused],
            ended["request_counts"]
            != {"total": plan.lines, "completed": plan.lines - len(refused), "failed": len(refused)},
        ]
    )
    for each in output:
        answer = each["response"]["body"]["output"][0]["content"][0]["text"]
        wrong += answer != said(int(each["custom_id"].removeprefix("line-")))
    return len({*expected} - {*names}), len(names) - len({*names}) + len(ids) - len({*ids}), wrong


@dataclass(frozen=True, slots=True)
class TwoServers:
    """Two servers of one store.

    Attributes:
        store: the server of the store; None for a file of SQLite.
    """

    servers: list[LiveStack]
    store: Valkey | None

    def victims(self, plan: Plan) -> Iterator[LiveStack | Valkey]:
        """Yield what is killed next, without end."""
        for server in cycle(self.servers):
            yield server
            if plan.store_too and self.store:
                yield self.store


@contextmanager
def two_servers(
    plan: Plan, folder: Path, model: Upstream, host: Host, settings: Json | None = None
) -> Iterator[TwoServers]:
    """Run two servers on one store, with one folder of files, batches, and further settings."""

    def moved(value: Any) -> Any:
        match value:
            case dict():
                return {name: moved(each) for name, each in value.items()}
            case list():
                return [moved(each) for each in value]
            case str():
                return value.replace(_STATE, str(folder))
        return value

    with ExitStack() as running:
        store: Json = {"type": "sqlite", "path": str(folder / "responses.db")}
        valkey = running.enter_context(Valkey(folder / "valkey")) if plan.store == "redis" else None
        if valkey:
            store = {"type": "redis", "url": valkey.url}

        def change(config: Json) -> None:
            config |= moved(config)
            responses_config(config)["batches"] = {"retry_seconds": 0.5}
            responses_config(config).update({"store": store, **(settings or {})})
            open_this_machine(config)

        config = variant(STARTER, folder / "config.yaml", change)
        env = {"INFERENCE_URL": model.base_url, "PYTHONPATH": PACKAGES}
        servers = [LiveStack(config, env, folder / name, host) for name in ("one", "other")]
        for server in servers:
            running.enter_context(server)
        yield TwoServers(servers, valkey)


def kill_in_turn(both: TwoServers, asking: Asking, batch_id: str, plan: Plan) -> int:
    """Kill servers until the batch has ended, or often enough; return how often."""
    ended = 0

    def is_over() -> bool:
        return bool(asking.batch(batch_id)["status"] == "completed")

    def is_further() -> bool:
        return is_over() or asking.batch(batch_id)["request_counts"]["completed"] >= ended + plan.further

    for kills, victim in enumerate(both.victims(plan)):
        time.sleep(plan.every)
        wait_until(is_further, _PATIENCE_SECONDS)
        if is_over() or kills == plan.kills:
            return kills
        ended = asking.batch(batch_id)["request_counts"]["completed"]
        name = "the store" if victim is both.store else "a server"
        sys.stderr.write(f"{ended} of {plan.lines} lines have ended, {name} is killed\n")
        victim.kill()
        victim.start()
    raise AssertionError


def run(plan: Plan, host: Host) -> Verdict:
    """Run once."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="batches-")))
        model = running.enter_context(UpstreamProcess(folder / "upstream.log")).client
        script(model, plan)
        both = running.enter_context(two_servers(plan, folder, model, host))
        content = "\n".join(json.dumps(line(number)) for number in range(plan.lines)).encode()
        with openai.OpenAI(base_url=f"{both.servers[0].base_url}/v1", api_key="none") as client:
            file_id = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch").id
            batch = client.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h")
        began, asking = time.monotonic(), Asking(both.servers)
        kills = kill_in_turn(both, asking, batch.id, plan)
        wait_until(lambda: asking.batch(batch.id)["status"] == "completed", _PATIENCE_SECONDS)
        ended = asking.batch(batch.id)
        seconds = time.monotonic() - began
        output, errors = (asking.lines(ended[name]) for name in ("output_file_id", "error_file_id"))
        return Verdict(kills, plan.lines, *judge(ended, output, errors, plan), seconds)


def main() -> int:
    """Run the benchmark; return 0 if each line ended once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the short run")
    parser.add_argument("--lines", type=int, help="how many lines")
    parser.add_argument("--every", type=float, help="seconds until a server is killed, at least")
    parser.add_argument("--store", choices=("redis", "sqlite"), help="the store (default: redis)")
    parser.add_argument("--store-too", action="store_true", default=None, help="kill the store's server too")
    arguments = vars(parser.parse_args())
    plan = CI if arguments.pop("ci") else FULL
    plan = replace(plan, **{name: value for name, value in arguments.items() if value is not None})
    verdict = run(plan, "ogx" if find_spec("ogx") else "llama_stack")
    width = max(len(name) for name, _ in verdict.rows())
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in verdict.rows())
    return 0 if verdict.well else 1


if __name__ == "__main__":
    sys.exit(main())
