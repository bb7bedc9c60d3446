"""The guide "Run it for a team", word by word: one shell runs its commands in their order."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.nginx import program as nginx
from tests.support.postgres import Postgres
from tests.support.postgres import program as postgres
from tests.support.process import free_port
from tests.support.snippets import blocks, substituted
from tests.support.stack import Host
from tests.support.upstream import UpstreamProcess

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]

PAGE: Final = "docs/guides/team.md"
PORTS: Final = ("8320", "8321", "8322", "9464", "9465")
ON_OGX: Final = {"llama stack run config.yaml": "ogx run --insecure config.yaml", "LLAMA_STACK_PORT": "OGX_PORT"}
"""The replacements that the guide names."""
SECONDS: Final = 400.0


def test_guide_for_a_team_works_word_by_word(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    upstream_process.client.reset()
    folder = tmp_path / "database"
    folder.mkdir()
    programs = [Path(sys.executable).parent, Path(nginx()).parent, Path(postgres("psql")).parent]
    with Postgres(folder) as database:
        replacements = {
            "http://localhost:8000": upstream_process.client.url,
            "localhost:5432": f"127.0.0.1:{database.port}",
            "YOUR-MODEL": "echo",
            **{port: str(free_port()) for port in PORTS},
            **(ON_OGX if host == "ogx" else {}),
        }
        page = [block.text for name, block in blocks().items() if name.startswith(f"{PAGE},")]
        script = substituted("\n".join(page), replacements)
        script = f"{script}\necho\n"
        ports = {port: replacements[port] for port in PORTS}
        conf = "balancer/nginx.conf"
        sed = f"sed --in-place {' '.join(f'-e s/:{port}/:{now}/' for port, now in ports.items())} {conf}\n"
        script = script.replace(f"cp {conf}", f"{sed}cp {conf}")
        env = {**os.environ, **stack_env, "PATH": ":".join([*map(str, programs), os.environ["PATH"]])}
        env |= {"PGPASSWORD": database.password, "NO_PROXY": "*", "no_proxy": "*"}
        try:
            printed = shell(script, env, tmp_path)
        finally:
            # It runs in the background, in a group of its own; the rest is of the shell's group.
            for pid_file in tmp_path.rglob("nginx.pid"):
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
    rows = [json.loads(line) for line in printed.splitlines() if '"owner"' in line]
    assert [row["owner"]["principal"] for row in rows] == ["grace"]
    assert re.search(r"^401\n404\n200\n200$", printed, re.MULTILINE), printed
    assert re.search(r"response\.read +allowed +operator", printed), printed
    assert "gen_ai_server_request_duration_seconds_count" in printed
    assert "llama_stack_responses_store_size" in printed
    assert (tmp_path / "team" / "responses.backup").stat().st_size > 1000
    secrets = ("database-password", "environment", "token-of-ada", "token-of-grace", "token-of-operator")
    assert {name: (tmp_path / "team" / name).stat().st_mode & 0o077 for name in secrets} == dict.fromkeys(secrets, 0)
    assert '"text":"Hello again"' in printed


def shell(script: str, env: dict[str, str], folder: Path) -> str:
    """Run a script that stops at its first error; return what it prints. All that it started ends."""
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    log = folder / "printed"
    with log.open("wb") as output:
        running = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            assert running.wait(SECONDS) == 0, log.read_text()
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    return log.read_text()
