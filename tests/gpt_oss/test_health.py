"""The provider's health says why the engine restarts, and how far it is."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_stack_gpt_oss.config import GptOssConfig
from llama_stack_gpt_oss.host.adapter import GptOssAdapter
from llama_stack_gpt_oss.process.client import EngineClient
from llama_stack_gpt_oss.process.settings import EngineSettings

from .support.processes import settings

READY = {"ready": {"pid": 1, "context": 2048, "pages": 9}}
LOADING = {"loading": {"bytes_done": 3e9, "bytes_total": 12e9, "layers_done": 6, "layers_total": 24, "later": 1}}
WARMING = {"loading": LOADING["loading"] | {"warm_up_steps_done": 4, "warm_up_steps_total": 40}}
DIED = "Rank 1 of the gpt-oss engine's 2 was killed by SIGKILL"


class PlayedEngine:
    """Listens in place of an engine, and sends its frames to the last client."""

    def __init__(self, of: EngineSettings) -> None:
        of.socket.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(of.socket))
        self._listener.listen()
        self._client: socket.socket | None = None

    def accept(self, *frames: dict[str, Any]) -> None:
        self._client, _ = self._listener.accept()
        for frame in frames:
            self.send(frame)

    def send(self, frame: dict[str, Any]) -> None:
        assert self._client is not None
        self._client.sendall(json.dumps(frame).encode() + b"\n")

    def end(self) -> None:
        if self._client is not None:
            self._client.close()

    def close(self) -> None:
        self.end()
        self._listener.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[EngineSettings, PlayedEngine]]:
    of = settings(tmp_path, tmp_path)
    engine = PlayedEngine(of)
    yield of, engine
    engine.close()


async def message(provider: GptOssAdapter) -> str:
    found = await provider.health()
    assert found["status"] == "Error"
    return str(found["message"])


async def test_health_during_restart_has_reason_and_progress(played: tuple[EngineSettings, PlayedEngine]) -> None:
    of, engine = played
    client = EngineClient(of)
    first = threading.Thread(target=engine.accept, args=(READY,))
    first.start()
    await asyncio.to_thread(client.start)
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
        async with asyncio.timeout(20):
            while (found := await message(provider)) != f"{DIED}. It is restarting: {progress}":
                assert found.startswith(f"{DIED}. It is restarting: it")
    first.join()
    with contextlib.suppress(asyncio.CancelledError):
        await client.close()
