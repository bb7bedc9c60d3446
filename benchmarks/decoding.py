"""What it costs to read the model server's stream and do nothing with it: with `openai`'s client, and with bare httpx.

It reads jobs as lines of JSON, `{client, base_url, model, lanes, streams}`, and answers each with the CPU seconds that
`lanes` times `streams` streams took this process, connections and warm-up not counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import uvloop

Read = Callable[[], Awaitable[int]]
"""Reads one stream to its end and returns how many pieces of text it had."""


def _openai_reader(http: httpx.AsyncClient, base_url: str, model: str) -> Read:
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)

    async def read() -> int:
        pieces = 0
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                pieces += 1
        return pieces

    return read


def _httpx_reader(http: httpx.AsyncClient, base_url: str, model: str) -> Read:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    async def read() -> int:
        pieces = 0
        async with http.stream("POST", f"{base_url}/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    pieces += 1
        return pieces - 4  # the opening chunk, the finish reason, the usage and [DONE]

    return read


async def _lane(read: Read, streams: int) -> int:
    return sum([await read() for _ in range(streams)])


async def _run(job: dict[str, Any]) -> dict[str, float]:
    make = {"openai": _openai_reader, "httpx": _httpx_reader}[job["client"]]
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        read = make(http, job["base_url"], job["model"])
        await asyncio.gather(*(read() for _ in range(job["lanes"])))
        started = time.process_time()
        pieces = await asyncio.gather(*(_lane(read, job["streams"]) for _ in range(job["lanes"])))
        return {"cpu": time.process_time() - started, "deltas": sum(pieces)}


def main() -> None:
    """Answer jobs until there are no more."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(uvloop.run(_run(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
