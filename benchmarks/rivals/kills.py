"""Streams of background responses whose server gets SIGKILL, and is started again with its state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import httpx

from benchmarks.rivals.servers import Rival
from tests.support.stack import LiveStack

type Json = dict[str, Any]

STREAMS: Final = 8
TOKENS: Final = 200
BEFORE: Final = 20
"""Tokens that a reader has when the server is killed."""
PATIENCE: Final = 45.0
"""Seconds after the restart until a stream must have ended."""
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")


class Reader:
    """One client of a stream, which resumes it at the last event that it has.

    Attributes:
        texts: what it has of each item, by the place in the output, the newest last. One that begins again replaces
            the earlier; a server may also begin another, since it asks the model again.
        response: the one of the last event, if it completed.
        refusal: why there is no stream.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._id, self._last = "", -1
        self.texts: dict[int, str] = {}
        self.response: Json | None = None
        self.refusal = ""

    def begin(self, client: httpx.Client) -> None:
        """Create the response, and read until enough tokens are there or the stream breaks."""
        body = {"model": self._model, "input": "Hello", "background": True, "store": True, "stream": True}
        with suppress(httpx.HTTPError), client.stream("POST", "/responses", json=body) as answer:
            if not answer.is_success:
                self.refusal = f"refused with {answer.status_code}"
                return
            for _ in self._read(answer):
                if sum(text.count(" ") for text in self.texts.values()) >= BEFORE:
                    return

    def resume(self, client: httpx.Client) -> None:
        """Read the rest, as often as it breaks."""
        deadline = time.monotonic() + PATIENCE
        while self._id and self.response is None and time.monotonic() < deadline:
            query = {"stream": "true", "starting_after": str(self._last)}
            with suppress(httpx.HTTPError), client.stream("GET", f"/responses/{self._id}", params=query) as answer:
                if answer.is_success and any(event["type"] in _ENDS for event in self._read(answer)):
                    return
            time.sleep(0.5)

    def note(self, event: Json) -> None:
        """Note an event of the stream."""
        self._last = event.get("sequence_number", self._last)
        self._id = self._id or (event.get("response") or {}).get("id", "")
        if event["type"] == "response.output_item.added":
            self.texts.pop(event["output_index"], None)
            self.texts[event["output_index"]] = ""
        elif event["type"] == "response.output_text.delta":
            self.texts[event["output_index"]] = self.texts.get(event["output_index"], "") + event["delta"]
        elif event["type"] == "response.completed":
            self.response = event["response"]

    def survived(self) -> bool:
        """Whether the response completed with all tokens, and the stream has them in its newest item."""
        if self.response is None:
            return False
        parts = [part for item in self.response["output"] for part in item.get("content") or ()]
        text = "".join(part.get("text", "") for part in parts)
        return text.count(" ") == TOKENS and [*self.texts.values()][-1:] == [text]

    def _read(self, answer: httpx.Response) -> Iterator[Json]:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                self.note(event)
                yield event


def survivors(rival: Rival, server: LiveStack) -> str:
    """Kill the server while streams run, start it again, and say how many of them a client read to their end."""
    readers = [Reader(f"{rival.prefix}text-{TOKENS}") for _ in range(STREAMS)]
    _all(server, readers, Reader.begin)
    server.kill()
    if any(each.refusal for each in readers):
        return f"0 of {STREAMS}: {readers[0].refusal}"
    server.start(server.port)
    _all(server, readers, Reader.resume)
    return f"{sum(each.survived() for each in readers)} of {STREAMS}"


def _all(server: LiveStack, readers: Sequence[Reader], act: Callable[[Reader, httpx.Client], None]) -> None:
    limits = httpx.Limits(max_connections=STREAMS)
    with (
        httpx.Client(base_url=f"{server.base_url}/v1", timeout=PATIENCE, trust_env=False, limits=limits) as client,
        ThreadPoolExecutor(STREAMS) as threads,
    ):
        list(threads.map(lambda each: act(each, client), readers))
