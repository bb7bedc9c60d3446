"""A server that is started with the usual low limit on open files, and more streams than that."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.openai_client import MODEL, NAME
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text

pytestmark = [pytest.mark.live, pytest.mark.extended]

SOFT: Final = 128
STREAMS: Final = 150


@contextmanager
def soft_limit(number: int) -> Iterator[None]:
    """Processes that are started in the block have this soft limit on open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def streamed(stack: LiveStack, upstream: Upstream) -> list[str]:
    """Return the bodies of streams that are all open at the same moment."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    request = {"model": MODEL, "input": "x", "stream": True, "store": False}
    async with httpx.AsyncClient(timeout=120, trust_env=False, verify=False, limits=limits) as client:
        url = f"{stack.base_url}/v1/responses"
        tasks = [asyncio.create_task(client.post(url, json=request)) for _ in range(STREAMS)]
        try:
            await asyncio.to_thread(upstream.wait_for, NAME, STREAMS)
        finally:
            upstream.release(NAME)
        return [answer.text for answer in await asyncio.gather(*tasks)]


def test_server_serves_more_streams_than_its_first_soft_limit_on_open_files(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script(NAME, reply(text("one ", "two"), hold=1))
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    stack = LiveStack(STARTER, env, tmp_path / "state", host=host, fork=False)
    with ExitStack() as running:
        with soft_limit(SOFT):
            running.enter_context(stack)
        answers = asyncio.run(streamed(stack, upstream))
    assert ["response.completed" in answer for answer in answers] == [True] * STREAMS
