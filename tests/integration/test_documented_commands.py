"""The console blocks of the documentation, pasted line by line (`tests/support/terminal.py`).

Ports and the addresses of outside services are replaced; the services are real local servers. On OGX, the host's
command and its variable for the port stand in place of llama-stack's, as the documentation says.
"""

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.auth import auth_server
from tests.support.nginx import program as nginx
from tests.support.otlp import Collector
from tests.support.process import Child, free_port
from tests.support.snippet_programs import COMMANDS
from tests.support.snippets import blocks
from tests.support.stack import READY_SECONDS, STARTER, Host, LiveStack
from tests.support.terminal import Terminal, wait_for_line
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.valkey import PATIENCE
from tests.support.valkey import program as valkey
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire, output_text

pytestmark = [pytest.mark.live, pytest.mark.extended]

BLOCKS: Final = blocks()
MODEL: Final = "local/qwen3"
ADA: Final = {"token-of-ada": {"principal": "ada", "attributes": {}, "tenant": ""}}
ON_OGX: Final = {"llama stack run": "ogx run --insecure", "LLAMA_STACK_PORT": "OGX_PORT"}
PORTS: Final = ("8320", "8321", "8322", "9464")
BACKUP: Final = "docs/guides/backup.md, Backup, console"
SWEEP: Final = "docs/guides/operations.md, Clocks, console"
OPERATOR: Final = "docs/guides/operations.md, Look at the store, console"
SCALE_OUT: Final = "docs/guides/scaling.md, Several servers, console"
READY: Final = "docs/guides/installation.md, With a ready configuration, console"
TRACES: Final = "docs/guides/operations.md, Traces and metrics, sh"
SCRAPES: Final = "docs/guides/operations.md, Traces and metrics, sh 2"


@pytest.mark.smoke
def test_every_block_of_commands_is_pasted_by_a_test_of_this_file() -> None:
    assert {BACKUP, OPERATOR, SCALE_OUT, READY, SWEEP, TRACES, SCRAPES} == set(COMMANDS)


def run_command(host: Host) -> str:
    """Return how a host is started, as the terminal has it."""
    return ON_OGX["llama stack run"] if host == "ogx" else "llama stack run"


@pytest.fixture
def ports() -> dict[str, str]:
    """A free port for each of the documentation."""
    return {port: str(free_port()) for port in PORTS}


@pytest.fixture
def terminal(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, ports: dict[str, str], tmp_path: Path
) -> Iterator[Terminal]:
    """A shell in an empty folder, with the programs of this environment and an empty home folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    model_server = upstream_process.client.url
    env = {
        **stack_env,
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
    replacements = {**ports, "http://localhost:8000": model_server}
    replacements |= ON_OGX if host == "ogx" else {}
    folder = tmp_path / "folder"
    folder.mkdir()
    with Terminal(folder, env, replacements) as created:
        yield created


def add_program(terminal: Terminal, name: str, command: str) -> None:
    """Add a program of this name, which runs `command` with its arguments."""
    path = Path(terminal.env["PATH"].partition(os.pathsep)[0]) / name
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def wait_for_stack(child: Child, port: str) -> None:
    """Wait until the server that a line started answers."""

    def answers() -> bool | None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/v1/health", timeout=5, trust_env=False).is_success or None
        except httpx.TransportError:
            return None

    child.wait_ready(answers, seconds=READY_SECONDS)


def create(port: str, headers: Mapping[str, str] | None = None, /, **fields: Json | str) -> Json:
    """Create a response on the server at this port."""
    url = f"http://127.0.0.1:{port}/v1/responses"
    answer = httpx.post(url, json=fields, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    created: Json = answer.json()
    return created


@pytest.mark.both_hosts
def test_ready_configuration_starts_a_server(terminal: Terminal, ports: dict[str, str], host: Host) -> None:
    terminal.env["OGX_PORT" if host == "ogx" else "LLAMA_STACK_PORT"] = ports["8321"]
    with terminal.pasting(BLOCKS[READY]) as lines:
        assert "run my-stack/config.yaml" in lines.run("llama-stack-responses init")
        wait_for_stack(lines.start("INFERENCE_URL="), ports["8321"])
    assert output_text(create(ports["8321"], model="local/echo", input="ready")) == "ready"


def test_telemetry_commands_send_spans_and_metrics(
    terminal: Terminal, ports: dict[str, str], host: Host, upstream_process: UpstreamProcess
) -> None:
    (terminal.folder / "config.yaml").write_text(STARTER.read_text())
    terminal.env |= {
        "INFERENCE_URL": upstream_process.client.base_url,
        "OGX_PORT" if host == "ogx" else "LLAMA_STACK_PORT": ports["8321"],
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    with Collector() as collector:
        terminal.replacements["http://localhost:4318"] = collector.env["OTEL_EXPORTER_OTLP_ENDPOINT"]
        with terminal.pasting(BLOCKS[TRACES]) as lines:
            lines.run("export OTEL_EXPORTER")
            wait_for_stack(lines.start(run_command(host)), ports["8321"])
        trace_id = secrets.token_hex(16)
        create(
            ports["8321"], {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}, model="local/echo", input="measured"
        )
        wait_until(lambda: bool(collector.points("gen_ai.client.token.usage")))
        assert {span.name for span in collector.spans(trace_id, 2)} == {"chat local/echo", "invoke_agent"}


def test_prometheus_commands_serve_metrics(
    terminal: Terminal, ports: dict[str, str], host: Host, upstream_process: UpstreamProcess
) -> None:
    (terminal.folder / "config.yaml").write_text(STARTER.read_text())
    terminal.env |= {
        "INFERENCE_URL": upstream_process.client.base_url,
        "OGX_PORT" if host == "ogx" else "LLAMA_STACK_PORT": ports["8321"],
    }
    with terminal.pasting(BLOCKS[SCRAPES]) as lines:
        lines.run("export OTEL_METRICS")
        wait_for_stack(lines.start(run_command(host)), ports["8321"])
        create(ports["8321"], model="local/echo", input="measured")
        assert "gen_ai_server_request_duration_seconds_count" in lines.run("curl")


def test_scale_out_commands_start_servers_that_act_as_one(
    terminal: Terminal, ports: dict[str, str], upstream_process: UpstreamProcess
) -> None:
    redis = free_port()
    add_program(terminal, "redis-server", f"{valkey()} --port {redis} --bind 127.0.0.1 --dir {terminal.folder}")
    add_program(terminal, "nginx", nginx())
    terminal.env |= {
        "REDIS_URL": f"redis://127.0.0.1:{redis}/0?{PATIENCE}",
        "INFERENCE_URL": upstream_process.client.base_url,
    }
    with terminal.pasting(BLOCKS[SCALE_OUT]) as lines:
        lines.run("llama-stack-responses init scale-out")
        config = terminal.folder / "DIR" / "nginx.conf"
        for port, instead in ports.items():
            config.write_text(config.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{instead}"))
        wait_for_line(lines.start("redis-server"), "Ready to accept connections", 180)
        lines.leave_out("vllm serve", "vLLM needs a GPU; the model server of the tests takes its place")
        lines.run("export RESPONSES_SECRET")
        for port in ("8321", "8322"):
            wait_for_stack(lines.start("STATE_DIR=state"), ports[port])
        lines.run("nginx")
    try:
        first = create(ports["8320"], model="local/echo", input="one")
        for port in ("8320", "8321", "8322"):
            following = create(ports[port], model="local/echo", input="two", previous_response_id=first["id"])
            assert output_text(following) == "two"
        prompt = httpx.post(
            f"http://127.0.0.1:{ports['8320']}/v1/prompts", json={"prompt": "Be brief."}, timeout=60
        ).json()
        for port in ("8321", "8322"):
            create(ports[port], model="local/echo", input="three", prompt={"id": prompt["prompt_id"]})
    finally:
        terminal.run('nginx -p "$PWD" -c nginx.conf -s stop')


# -- an operator's commands ----------------------------------------------------


@pytest.fixture
def kept(
    terminal: Terminal, host: Host, stack_env: dict[str, str], upstream: Upstream, tmp_path: Path
) -> Iterator[list[Json]]:
    """Responses of `ada`, the second of which failed, in the store of `config.yaml`, whose server runs."""

    def guard(config: Json) -> None:
        config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": url}}

    upstream.script("qwen3", [reply(text("Hello.")), reply(text("Hel"), end="drop"), reply(text("Hello."))])
    with auth_server(ADA) as url:
        config = variant(STARTER, terminal.folder / "config.yaml", guard)
        env = {**stack_env, "INFERENCE_URL": upstream.base_url}
        with LiveStack(config, env, tmp_path / "state", host=host) as stack:
            terminal.env["STATE_DIR"] = str(stack.state_dir)
            with Wire(stack, token="token-of-ada") as wire:
                responses = [wire.create(model=MODEL, input="One.")]
                wire.post({"model": MODEL, "input": "Two.", "stream": True})
                responses.append(wire.create(model=MODEL, input="Three.", previous_response_id=responses[0]["id"]))
                yield responses


# Twenty processes; the commands have tests in this process.
@pytest.mark.whole_run
@pytest.mark.one_host
def test_operator_commands_show_and_delete_stored_responses(terminal: Terminal, kept: list[Json]) -> None:
    first, last = kept
    terminal.replacements["RESPONSE_ID"] = last["id"]
    with terminal.pasting(BLOCKS[OPERATOR]) as lines:
        assert " failed " in lines.run("llama-stack-responses list")
        assert "Three." in lines.run("llama-stack-responses show")
        assert first["id"] in lines.run("llama-stack-responses chain")
        wait_for_line(lines.start("llama-stack-responses tail"), last["id"], 180)
        assert re.search(r"\b3\b", lines.run("llama-stack-responses stats"))
        lines.run("llama-stack-responses queue")
        assert lines.run("llama-stack-responses partitions").startswith("PARTITION")
        lines.run("llama-stack-responses sweep --yes")
        lines.run("llama-stack-responses sweep --conversation-days")
        lines.run("llama-stack-responses export")
        exported = [json.loads(line) for line in (terminal.folder / "ada.jsonl").read_text().splitlines()]
        assert {first["id"], last["id"]} <= {each.get("id") or each["response"]["id"] for each in exported}
        lines.run("llama-stack-responses delete resp_")
        assert last["id"] not in terminal.run("llama-stack-responses list")
        lines.run("llama-stack-responses delete --owner")
        assert first["id"] not in terminal.run("llama-stack-responses list")
        lines.run("llama-stack-responses audit")
        assert lines.run("llama-stack-responses usage").split()[:2] == ["TEAM", "MODEL"]


@pytest.mark.one_host
def test_sweep_commands_delete_expired_responses(terminal: Terminal, kept: list[Json]) -> None:
    def lower(config: Json) -> None:
        responses_config(config)["retention_days"] = 1e-9

    wait_until(lambda: time.time() > kept[-1]["created_at"] + 1.1)
    config = terminal.folder / "config.yaml"
    with terminal.pasting(BLOCKS[SWEEP]) as lines:
        assert lines.run("llama-stack-responses sweep ").split() == ["deleted", "responses", "0"]
        variant(config, config, lower)
        assert lines.run("llama-stack-responses sweep --yes").split()[-3:] == ["deleted", "responses", "3"]
    assert kept[0]["id"] not in terminal.run("llama-stack-responses list")


@pytest.mark.one_host
def test_backup_commands_copy_responses_to_another_store(terminal: Terminal, kept: list[Json]) -> None:
    other = terminal.folder / "other"
    other.mkdir()
    config = (terminal.folder / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("${env.STATE_DIR:=~/.llama-stack-responses}", str(other)))
    with terminal.pasting(BLOCKS[BACKUP]) as lines:
        lines.run("llama-stack-responses backup")
        lines.run("llama-stack-responses restore")
    for each in kept:
        assert "Hello." in terminal.run(f"llama-stack-responses show {each['id']} --config other/config.yaml")
