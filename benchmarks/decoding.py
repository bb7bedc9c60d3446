"""The cost of reading the model server's stream without processing it.

There are three readers. `openai`: one client for all streams. `host`: the host's own inference provider, which uses a
new client and connection for each request. `httpx`: splits lines only.

Jobs arrive as lines of JSON, `{reader, base_url, model, lanes, streams}`. The answer to each has the CPU seconds of
this process for `lanes` times `streams` streams, and the number of text deltas. One stream per lane runs before the
measurement as a warm-up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Final

import httpx
import openai
import uvloop

Json = dict[str, Any]
Read = Callable[[], Awaitable[int]]
"""Reads one stream to its end; returns the number of text deltas."""

_CLOSING_LINES: Final = 4  # further `data:` lines: role, finish reason, usage and [DONE]


def _request(model: str) -> Json:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _texts(chunks: Any) -> int:
    pieces = 0
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            pieces += 1
    return pieces


@asynccontextmanager
async def _openai(base_url: str, model: str) -> AsyncIterator[Read]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:

        async def read() -> int:
            return await _texts(await client.chat.completions.create(**_request(model)))

        yield read


class _NoModels:
    """A stand-in for the host's list of models."""

    async def has_model(self, _: str) -> bool:
        return False


@asynccontextmanager
async def _host(base_url: str, model: str) -> AsyncIterator[Read]:
    host = "ogx" if find_spec("ogx") else "llama_stack"
    vllm = import_module(f"{host}.providers.remote.inference.vllm.vllm")
    config = import_module(f"{host}.providers.remote.inference.vllm.config")
    request = import_module(
        f"{host}_api" if host == "ogx" else "llama_stack_api"
    ).OpenAIChatCompletionRequestWithExtraBody
    provider = vllm.VLLMInferenceAdapter(config=config.VLLMInferenceAdapterConfig(base_url=base_url))
    provider.model_store = _NoModels()
    provider.__provider_spec__ = SimpleNamespace(provider_type="remote::vllm", provider_data_validator="no one asks")

    async def read() -> int:
        return await _texts(await provider.openai_chat_completion(request(**_request(model))))

    yield read


@asynccontextmanager
async def _httpx(base_url: str, model: str) -> AsyncIterator[Read]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:

        async def read() -> int:
            async with http.stream("POST", f"{base_url}/chat/completions", json=_request(model)) as answer:
                lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
            return len(lines) - _CLOSING_LINES

        yield read


_READERS: Final = {"openai": _openai, "host": _host, "httpx": _httpx}


async def _lane(read: Read, streams: int) -> int:
    return sum([await read() for _ in range(streams)])


async def _run(job: Json) -> Json:
    async with _READERS[job["reader"]](job["base_url"], job["model"]) as read:
        await asyncio.gather(*(read() for _ in range(job["lanes"])))
        started = time.process_time()
        pieces = await asyncio.gather(*(_lane(read, job["streams"]) for _ in range(job["lanes"])))
        return {"cpu": time.process_time() - started, "deltas": sum(pieces)}


def main() -> None:
    """Answer jobs until the end of the input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(uvloop.run(_run(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
