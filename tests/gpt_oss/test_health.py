"""The host serves while the engine is starting, and the provider's health says how far it is."""

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from llama_stack_gpt_oss.config import GptOssConfig
from llama_stack_gpt_oss.engine.errors import EngineError
from llama_stack_gpt_oss.host.adapter import GptOssAdapter
from llama_stack_gpt_oss.host.platform import OpenAIChatCompletionRequestWithExtraBody
from llama_stack_gpt_oss.process.client import EngineClient, EngineStartingError
from llama_stack_gpt_oss.process.frames import line
from llama_stack_gpt_oss.process.settings import EngineSettings

from .support.engines import WIDE, CountingRunner, engine_over
from .support.processes import settings, wait_for
from .support.stacks import ANSWER, GREEDY, QUESTION, health, trained_stack

READY = {"ready": {"pid": 1, "context": 2048, "pages": 9}}
LOADING = {"loading": {"bytes_done": 3e9, "bytes_total": 12e9, "layers_done": 6, "layers_total": 24, "later": 1}}
WARMING = {"loading": LOADING["loading"] | {"warm_up_steps_done": 4, "warm_up_steps_total": 40}}
DIED = "Rank 1 of the gpt-oss engine's 2 was killed by SIGKILL"


class FakeEngine:
    """Listens in place of an engine, and sends its frames to the last client."""

    def __init__(self, of: EngineSettings) -> None:
        of.socket.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(of.socket))
        self._listener.listen()
        self._client: socket.socket | None = None

    def accept(self, *frames: dict[str, Any]) -> None:
        self.end()
        self._client, _ = self._listener.accept()
        for frame in frames:
            self.send(frame)

    def called(self) -> bool:
        """Return whether a client waits to be accepted."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def send(self, frame: dict[str, Any]) -> None:
        assert self._client is not None
        self._client.sendall(line(frame))

    def receive(self) -> bytes:
        assert self._client is not None
        return self._client.recv(1 << 16)

    def end(self) -> None:
        if self._client is not None:
            self._client.close()

    def close(self) -> None:
        self.end()
        self._listener.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[EngineSettings, FakeEngine]]:
    of = settings(tmp_path, tmp_path)
    engine = FakeEngine(of)
    yield of, engine
    engine.close()


async def message(provider: GptOssAdapter) -> str:
    found = await provider.health()
    assert found["status"] == "Error"
    return str(found["message"])


async def test_health_during_restart_has_reason_and_progress(played: tuple[EngineSettings, FakeEngine]) -> None:
    of, engine = played
    client = EngineClient(of)
    first = threading.Thread(target=engine.accept, args=(READY,))
    first.start()
    await asyncio.to_thread(client.start)
    await client.ready()
    provider = GptOssAdapter(GptOssConfig(checkpoint="x"), health_seconds=0.1)
    provider._client = client
    assert await message(provider) == "The gpt-oss engine has not answered for 0.1 seconds"
    engine.send({"failed": DIED})
    engine.end()
    await asyncio.to_thread(engine.accept)
    assert await message(provider) == f"{DIED}. It is restarting: its process has not reported any progress yet"
    for frame, progress in (
        (LOADING, "it is loading the weights, 3.0 of 12.0 GB, 6 of 24 layers"),
        (WARMING, "it is warming up, 4 of 40 steps"),
    ):
        engine.send(frame)
        async with asyncio.timeout(60):
            while (found := await message(provider)) != f"{DIED}. It is restarting: {progress}":
                assert found.startswith(f"{DIED}. It is restarting: it")
    first.join()
    with contextlib.suppress(asyncio.CancelledError):
        await client.close()


async def test_engine_that_answers_and_computes_nothing_is_unhealthy(played: tuple[EngineSettings, FakeEngine]) -> None:
    of, engine = played
    client = EngineClient(of)
    await asyncio.gather(asyncio.to_thread(client.start), asyncio.to_thread(engine.accept, READY))
    provider = GptOssAdapter(GptOssConfig(checkpoint="x", stall_seconds=1), health_seconds=60)
    provider._client = client
    busy = asdict(replace(engine_over(CountingRunner(WIDE))[0].metrics(), running=1))
    for tag in range(2):
        checking = asyncio.create_task(provider.health())
        await asyncio.to_thread(engine.receive)
        engine.send({"metrics": busy, "tag": tag})
        found = await checking
        assert found["status"] == ("OK", "Error")[tag]
        await asyncio.sleep(0.3)
    assert "has computed nothing for its requests for" in str(found["message"])
    await client.close()


async def test_engine_starts_while_its_client_answers(played: tuple[EngineSettings, FakeEngine]) -> None:
    """launch() returns with the first progress. A call waits for a while, and is then refused with the progress."""
    of, engine = played
    client = EngineClient(of, patience_seconds=0.1)
    provider = GptOssAdapter(GptOssConfig(checkpoint="x"))
    provider._client = client
    await asyncio.gather(asyncio.to_thread(client.launch), asyncio.to_thread(engine.accept, LOADING))
    loading = "The gpt-oss engine is starting: it is loading the weights, 3.0 of 12.0 GB, 6 of 24 layers"
    assert await message(provider) == loading
    assert await provider.should_refresh_models() is False
    with pytest.raises(EngineStartingError, match=r"it is loading the weights, 3.0 of 12.0 GB.*Try again"):
        await client.ready()
    body = OpenAIChatCompletionRequestWithExtraBody(model="x", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.InternalServerError) as refusal:
        await provider.openai_chat_completion(body)
    assert (refusal.value.status_code, refusal.value.response.headers["retry-after"]) == (503, "2")
    engine.send(READY)
    await asyncio.to_thread(wait_for, lambda: client.starting() is None)
    assert (await client.ready()).context == 2048
    assert client.starting() is None
    assert await provider.should_refresh_models() is True
    await client.close()


async def test_engine_that_fails_after_its_checks_is_unhealthy_with_reason(
    played: tuple[EngineSettings, FakeEngine],
) -> None:
    of, engine = played
    client = EngineClient(of)
    provider = GptOssAdapter(GptOssConfig(checkpoint="x"))
    provider._client = client
    await asyncio.gather(asyncio.to_thread(client.launch), asyncio.to_thread(engine.accept, LOADING))
    engine.send({"failed": "cuda:0 has too little memory"})
    with pytest.raises(EngineError, match="cuda:0 has too little memory"):
        await client.ready()
    await client.close()


async def test_failed_start_is_repeated_after_longer_and_longer_waits(
    played: tuple[EngineSettings, FakeEngine],
) -> None:
    """Meanwhile, health checks and requests get the last error, and do not start the engine."""
    of, engine = played
    now = 100.0
    client = EngineClient(of, clock=lambda: now)
    provider = GptOssAdapter(GptOssConfig(checkpoint="x"), health_seconds=0.1)
    provider._client = client
    await asyncio.gather(asyncio.to_thread(client.launch), asyncio.to_thread(engine.accept, LOADING))
    for number, seconds in enumerate((5, 10, 20, 40, 80, 160, 300, 300)):
        error = f"cuda:0 has too little memory, start {number}"
        engine.send({"failed": error})
        with pytest.raises(EngineError, match=error):
            await client.ready()
        now += seconds - 0.5
        for _ in range(20):
            assert await message(provider) == f"{error}. The engine is not started again for 1 seconds"
        with pytest.raises(EngineError, match=error):
            await client.ready()
        assert not engine.called()
        now += 0.5
        checked, _ = await asyncio.gather(message(provider), asyncio.to_thread(engine.accept, LOADING))
        assert checked.startswith(f"{error}. The engine is starting again: it")
        await asyncio.to_thread(wait_for, lambda: "6 of 24 layers" in (client.starting() or ""))
    engine.send(READY)
    await client.ready()
    assert client.starting() is None
    engine.end()
    await asyncio.to_thread(engine.accept, LOADING)
    engine.send({"failed": DIED})
    with pytest.raises(EngineError, match=DIED):
        await client.ready()
    assert await message(provider) == f"{DIED}. The engine is not started again for 5 seconds"
    await client.close()


def test_host_serves_and_is_not_ready_while_engine_loads(tmp_path: Path) -> None:
    """Liveness is well, readiness is not, and a request is answered once the engine is ready."""
    stack = trained_stack(tmp_path)
    config = GptOssConfig(
        checkpoint=str(tmp_path / "trained"), device="cpu", context_length=4096, state_dir=str(stack.state_dir)
    )
    engine = FakeEngine(config.engine(tmp_path / "trained"))
    accepted = threading.Thread(target=engine.accept, args=(LOADING,))
    accepted.start()
    try:
        with stack, httpx.Client(base_url=stack.base_url, timeout=60, trust_env=False) as http:
            accepted.join()
            assert http.get("/v1/health").status_code == 200
            assert "loading the weights, 3.0 of 12.0 GB" in health(stack)["message"]
            ready = http.get("/v1/ready")
            assert (ready.status_code, ready.json()["model_server"]) == (503, "unavailable")
            with ThreadPoolExecutor(1) as pool, stack.client() as client:
                patient = client.with_options(max_retries=9)  # on a busy machine, an engine starts for minutes
                asked = pool.submit(lambda: patient.responses.create(input=QUESTION, **GREEDY).output_text)
                engine.close()
                assert asked.result() == ANSWER
            wait_for(lambda: http.get("/v1/ready").status_code == 200)
    finally:
        engine.close()
