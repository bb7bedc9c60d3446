"""The two servers that are compared, and what can be read of them from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.support.stack import Host, LiveStack

REPOSITORY = Path(__file__).parents[1]
TEMPLATE = REPOSITORY / "templates" / "starter" / "config.yaml"

OURS = "this project"
BUILTIN = "builtin"

_UNSETTLED = ("-wal", "-shm", "-journal")
_TICKS = os.sysconf("SC_CLK_TCK")


def builtin_config() -> str:
    """The starter template with the host's own provider in our place, and no more than that one needs to start."""
    config = yaml.safe_load(TEMPLATE.read_text())
    config["apis"] += ["tool_runtime", "vector_io"]
    persistence = {
        "agent_state": {"namespace": "agents", "backend": "kv_default"},
        "responses": {"table_name": "responses", "backend": "sql_default"},
    }
    config["providers"] |= {
        "responses": [
            {"provider_id": "builtin", "provider_type": "inline::builtin", "config": {"persistence": persistence}}
        ],
        "tool_runtime": [],
        "vector_io": [],
    }
    return yaml.safe_dump(config)


def stack(kind: str, host: Host, inference_url: str, folder: Path) -> LiveStack:
    """A server of this kind, its state in a new folder; nothing runs yet."""
    config = TEMPLATE
    if kind == BUILTIN:
        config = folder / "builtin.yaml"
        config.write_text(builtin_config())
    environment = {"INFERENCE_URL": inference_url, "PYTHONPATH": str(REPOSITORY)}
    return LiveStack(config, environment, folder / kind.replace(" ", "-"), host)


def cpu_seconds(pid: int) -> float:
    """CPU time of the process group, of all its threads, and of the children that it has waited for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == pid:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def stored_bytes(server: LiveStack, *, settled: bool = True) -> int:
    """Bytes of all files under the state folder but the log; of a server that runs, without write-ahead logs."""
    files = [path for path in server.state_dir.rglob("*") if path.is_file() and path != server.log]
    return sum(path.stat().st_size for path in files if settled or not path.name.endswith(_UNSETTLED))


class Worker:
    """A module of this folder in a process of its own, which answers lines of JSON with lines of JSON."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, job: dict[str, Any]) -> Any:
        """The answer to one job."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("a measuring process ended; its error stands above")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
