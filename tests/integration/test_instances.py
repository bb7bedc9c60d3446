"""Two servers of one machine, as systemd would start them from `responses@.service`."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.process import Child
from tests.support.stack import READY_SECONDS, REPOSITORY, STARTER
from tests.support.upstream import UpstreamProcess
from tests.support.waiting import wait_until

# What the unit starts is llama-stack's command.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(1), pytest.mark.one_host]

UNIT: Final = REPOSITORY / "templates" / "deploy" / "responses@.service"


@dataclass(frozen=True)
class Machine:
    """Where the unit finds its files here, instead of on a machine with systemd."""

    folder: Path

    def located(self, text: str) -> str:
        """Return a text of the unit with the paths of this machine."""
        places = {
            "/opt/responses/bin": str(Path(sys.executable).parent),
            "/etc/responses": str(self.folder / "etc"),
            "/var/lib/responses": str(self.folder / "state"),
        }
        for path, place in places.items():
            text = text.replace(path, place)
        return text

    def command(self, instance: str) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment of an instance, as systemd.exec(5) and systemd.service(5) have them."""
        settings = self.located(UNIT.read_text()).replace("\\\n", " ").replace("%i", instance)
        found = re.findall(r"^(Environment|EnvironmentFile|ExecStart)=(.*)$", settings, re.MULTILINE)
        lines = [word for name, value in found if name == "Environment" for word in shlex.split(value)]
        for value in (value for name, value in found if name == "EnvironmentFile"):
            path = Path(value.removeprefix("-"))
            if path.exists() or not value.startswith("-"):
                lines += path.read_text().splitlines()
        [command] = [shlex.split(value) for name, value in found if name == "ExecStart"]
        return command, dict(line.split("=", 1) for line in lines)


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture(scope="module")
def ports() -> list[str]:
    """Two ports of four digits, which are free with a 1 in front too."""
    some = random.sample(range(2000, 10_000), 200)
    return [str(port) for port in some if is_free(port) and is_free(10_000 + port)][:2]


@pytest.fixture(scope="module")
def instances(
    ports: list[str],
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Child]]:
    """The two servers. The second has an environment of its own."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    etc = machine.folder / "etc"
    etc.mkdir()
    (machine.folder / "state").mkdir()
    (etc / "config.yaml").write_text(STARTER.read_text())
    (etc / "environment").write_text(f"INFERENCE_URL={upstream_process.client.base_url}\n")
    (etc / f"{ports[1]}.environment").write_text("OTEL_SERVICE_NAME=second\n")
    with ExitStack() as running:
        children = []
        for port in ports:
            command, env = machine.command(port)
            child = Child(command, log=machine.folder / f"{port}.log", env={**os.environ, **stack_env, **env}, cwd=etc)
            running.callback(child.kill)
            child.wait_ready(lambda port=port: is_up(port), seconds=READY_SECONDS)  # type: ignore[misc]
            children.append(child)
        yield children


def is_up(port: str) -> bool | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/ready", timeout=5, trust_env=False).is_success or None
    except httpx.TransportError:
        return None


@pytest.mark.usefixtures("instances")
def test_instances_share_responses_files_and_prompts(ports: list[str]) -> None:
    with ExitStack() as clients:
        first, second = (
            clients.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=120, trust_env=False))
            for port in ports
        )
        response = first.post("/responses", json={"model": "local/echo", "input": "shared"}).json()
        assert second.get(f"/responses/{response['id']}").json() == response
        file = first.post("/files", files={"file": ("a.txt", b"otters")}, data={"purpose": "assistants"}).json()
        assert second.get(f"/files/{file['id']}/content").content == b"otters"
        prompt = first.post("/prompts", json={"prompt": "Be brief."}).json()
        asked = {"model": "local/echo", "input": "x", "prompt": {"id": prompt["prompt_id"]}}
        assert second.post("/responses", json=asked).status_code == 200


@pytest.mark.usefixtures("instances")
def test_each_instance_has_its_metrics_behind_its_port_with_a_one(ports: list[str]) -> None:
    names = []
    for port in ports:
        text = httpx.get(f"http://127.0.0.1:1{port}/metrics", timeout=60, trust_env=False).text
        names += re.findall(r'^target_info{.*service_name="(\w+)"', text, re.MULTILINE)
    assert names == ["responses", "second"]


def test_stopped_instance_ends_and_leaves_the_other_one(instances: list[Child], ports: list[str]) -> None:
    """This test must be last."""
    assert instances[0].stop() in (0, -signal.SIGTERM)
    wait_until(lambda: bool(is_up(ports[1])))
