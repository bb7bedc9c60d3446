"""A scripted upstream: an OpenAI-compatible server told what to stream, how slowly, and how to fail.

    python -m tests.support.upstream --port 0       # prints `listening http://127.0.0.1:PORT`

    upstream.script("m1", [reply(text("Hello", " world")), error(429, "slow down")])
    ...
    [first, second] = upstream.requests("m1")
    assert first.ended == "completed"

Each request for a model takes its next reply; the last one repeats. Unscripted, `echo` repeats the last user text word
by word and `fast-N` says N words at once; any other model is a 404. `/tokenize` counts the tokens of a chat. The server's own address speaks HTTP too, for
whoever drives it without this class: `POST /_script`, `POST /_release`, `GET /_requests?model=`, `POST /_reset`.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import executable
from typing import Any, Literal, Self

import httpx

from tests.support.process import Child
from tests.support.script import (
    Chunk,
    Reply,
    error,
    finish,
    interleaved_calls,
    logprobs,
    raw,
    reasoning,
    refusal,
    reply,
    text,
    tool_call,
)

__all__ = [
    "Chunk",
    "Recorded",
    "Reply",
    "Upstream",
    "error",
    "finish",
    "interleaved_calls",
    "logprobs",
    "raw",
    "reasoning",
    "refusal",
    "reply",
    "text",
    "tool_call",
]

REPOSITORY = Path(__file__).parents[2]
type Ended = Literal["completed", "client_gone", "failed", "streaming"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One chat request. Times are seconds of the monotonic clock, which all processes of a machine share.

    `ended` is "failed" where the script failed on purpose: an error status, a drop, an error frame.
    """

    body: dict[str, Any]
    headers: dict[str, str]  # names in lower case
    ended: Ended
    started_at: float
    ended_at: float | None
    chunks_sent: int  # of the script's chunks


class Upstream:
    """Drives an upstream that runs somewhere, by HTTP."""

    def __init__(self, url: str) -> None:
        """`url` is the server's root, without /v1."""
        self.url = url
        self.base_url = f"{url}/v1"
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def script(self, model: str, replies: Sequence[Reply] | Reply, context: int | None = None) -> None:
        """From now on this model answers with these, in order; the last one repeats.

        With a `context`, it refuses chats that have more tokens, which are words and signs here.
        """
        listed = [replies] if isinstance(replies, Reply) else replies
        told = {"model": model, "replies": [each.as_json() for each in listed], "context": context}
        self._post("/_script", told)

    def release(self, model: str) -> None:
        """Let the answers of this model that have begun go on past their `hold`, or begin that were `withheld`."""
        self._post("/_release", {"model": model})

    def reset(self) -> None:
        """Forget every script and record, and cut off what still streams."""
        self._post("/_reset", {})

    def requests(self, model: str | None = None) -> list[Recorded]:
        """The chat requests since the last reset, oldest first."""
        answer = self._http.get("/_requests", params={} if model is None else {"model": model})
        answer.raise_for_status()
        return [Recorded(**record) for record in answer.json()]

    def wait_for(
        self, model: str, count: int = 1, *, ended: bool = False, chunks: int = 0, seconds: float = 60.0
    ) -> list[Recorded]:
        """The requests for `model`, once there are `count` of them, each with `chunks` sent, ended if so asked."""
        deadline = time.monotonic() + seconds
        while True:
            records = self.requests(model)
            ready = [each for each in records if each.chunks_sent >= chunks and not (ended and each.ended_at is None)]
            if len(ready) >= count:
                return records
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(ready)} of {count} requests for {model} after {seconds:g} s: {records}")
            time.sleep(0.01)

    def close(self) -> None:
        """Close the connections to it; the server runs on."""
        self._http.close()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = self._http.post(path, json=body)
        if answer.is_error:
            raise ValueError(answer.text)


class UpstreamProcess:
    """An upstream in a process of its own, which ends with the `with` block."""

    def __init__(self, log: Path, port: int = 0) -> None:
        """Its output goes to `log`; port 0 takes a free one."""
        self._log = log
        self._port = port

    def __enter__(self) -> Self:
        """Start it and wait until it listens."""
        command = [executable, "-m", "tests.support.upstream", "--port", str(self._port)]
        self._log.write_bytes(b"")
        self.child = Child(command, log=self._log, cwd=REPOSITORY)
        try:
            self.client = Upstream(self.child.wait_ready(self._address, seconds=90, every=0.01))
        except BaseException:
            self.child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.client.close()
        self.child.stop()

    def _address(self) -> str | None:
        match = re.search(r"^listening (\S+)$", self._log.read_text(), re.MULTILINE)
        return match and match[1]


if __name__ == "__main__":
    from tests.support.upstream_server import main

    main()
