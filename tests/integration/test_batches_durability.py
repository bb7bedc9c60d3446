"""Two servers that are killed in turn lose no line of a batch, and write none twice."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until

# Batches and the store do not depend on the host, apart from its files, which test_batches.py has on both.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]

LINES: Final = 300
KILLS: Final = 6
STATE: Final = "${env.STATE_DIR:=~/.llama-stack-responses}"


def sharing(folder: Path) -> Callable[[Json], None]:
    """Return a change of a configuration: all its data are in a folder, and batches are on."""

    def moved(value: Any) -> Any:
        match value:
            case dict():
                return {name: moved(each) for name, each in value.items()}
            case list():
                return [moved(each) for each in value]
            case str():
                return value.replace(STATE, str(folder))
        return value

    def change(config: Json) -> None:
        config |= moved(config)
        responses_config(config)["batches"] = {}

    return change


@pytest.fixture
def servers(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> Iterator[list[LiveStack]]:
    """Two servers on one store, with one folder of files."""
    config = variant(STARTER, tmp_path / "config.yaml", sharing(tmp_path))
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:
        # A child process ends with the thread that started it.
        starter = running.enter_context(ThreadPoolExecutor(1))
        stacks = [LiveStack(config, env, tmp_path / name, host=host) for name in ("one", "other")]
        for stack in stacks:
            running.callback(stack.stop)
            starter.submit(stack.start).result()
        yield stacks


def found_by(servers: list[LiveStack], path: str) -> Any:
    """Return what a server that runs answers."""
    for server in servers:
        try:
            answer = httpx.get(f"{server.base_url}/v1{path}", timeout=30, trust_env=False)
        except httpx.TransportError:
            continue
        if answer.is_success:
            return answer
    return None


def done(servers: list[LiveStack], batch_id: str) -> Json:
    answer = found_by(servers, f"/batches/{batch_id}")
    found: Json = answer.json() if answer else {"status": "unknown", "request_counts": {"completed": 0}}
    return found


def test_repeated_kills_lose_and_repeat_no_line(servers: list[LiveStack], upstream: Upstream) -> None:
    upstream.script("slow", reply(text("Done"), delay=2.0))
    models = ("local/echo", "local/slow", "nobody/here")
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": models[2 if number % 50 == 0 else number % 2], "input": f"number {number}"},
        }
        for number in range(LINES)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    with openai.OpenAI(base_url=f"{servers[0].base_url}/v1", api_key="none") as client:
        file_id = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch").id
        batch = client.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h")
    killed = 0
    with ThreadPoolExecutor(1) as starter:
        for victim in cycle(servers):
            seen = done(servers, batch.id)["request_counts"]["completed"]
            # Each kill meets another part of the batch.
            wait_until(partial(is_further, servers, batch.id, seen))
            if killed == KILLS or done(servers, batch.id)["status"] == "completed":
                break
            victim.kill()
            killed += 1
            starter.submit(victim.start).result()
        wait_until(lambda: done(servers, batch.id)["status"] == "completed")
        ended = done(servers, batch.id)
        output, errors = (
            [json.loads(each) for each in found_by(servers, f"/files/{file}/content").text.splitlines()]
            for file in (ended["output_file_id"], ended["error_file_id"])
        )
        for server in servers:
            server.stop()
    assert killed >= 3
    refused = [each["custom_id"] for each in lines if each["body"]["model"] == models[2]]  # type: ignore[index]
    assert [each["custom_id"] for each in errors] == refused
    assert [each["custom_id"] for each in output] == [
        each["custom_id"] for each in lines if each["custom_id"] not in refused
    ]
    texts = {each["custom_id"]: each["response"]["body"]["output"][0]["content"][0]["text"] for each in output}
    expected = {f"line-{n}": "Done" if n % 2 else f"number {n}" for n in range(LINES) if n % 50}
    assert texts == expected
    assert ended["request_counts"] == {"total": LINES, "completed": len(expected), "failed": len(refused)}
    assert len({each["response"]["body"]["id"] for each in output}) == len(output)


def is_further(servers: list[LiveStack], batch_id: str, seen: int) -> bool:
    """Return whether 20 more lines have ended, or all."""
    found = done(servers, batch_id)
    return bool(found["status"] == "completed" or found["request_counts"]["completed"] >= seen + 20)
