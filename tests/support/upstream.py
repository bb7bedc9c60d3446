"""A scripted upstream: an OpenAI-compatible server with scripted answers, delays and failures.

    python -m tests.support.upstream --port 0       # prints `listening http://127.0.0.1:PORT`

    upstream.script("m1", [reply(text("Hello", " world")), error(429, "slow down")])
    ...
    [first, second] = upstream.requests("m1")
    assert first.ended == "completed"

Each request for a model takes its next reply; the last one repeats. Without a script, `echo` repeats the last user text
word by word, and `fast-N` returns N words at once; any other model is a 404. `/tokenize` counts the tokens of a chat.
Control routes, for use without this class: `POST /_script`, `POST /_release`, `POST /_step`, `GET /_requests?model=`, `POST /_reset`.
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
    "RecordedChat",
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
class RecordedChat:
    """One chat request. Times are seconds of the monotonic clock, which all processes of a machine share.

    `ended` is "failed" for scripted failures: an error status, a drop, an error frame.
    """

    body: dict[str, Any]
    headers: dict[str, str]  # names in lower case
    ended: Ended
    started_at: float
    ended_at: float | None
    chunks_sent: int  # of the script's chunks


class Upstream:
    """A client that controls a running upstream by HTTP."""

    def __init__(self, url: str) -> None:
        """Create a client. `url` is the server's root, without /v1."""
        self.url = url
        self.base_url = f"{url}/v1"
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False)

    def script(
        self,
        model: str,
        replies: Sequence[Reply] | Reply,
        context: int | None = None,
        *,
        by_results: bool = False,
        about: str = "",
    ) -> None:
        """Set the replies of a model, in order; the last one repeats.

        With a `context`, chats with more tokens are refused; each word and punctuation mark is a token here. With
        `by_results`, the number of outputs of tools in a request says which reply it gets. Those `about` a text are for
        the chats that contain it, and the others of the model for all other chats.
        """
        listed = [replies] if isinstance(replies, Reply) else replies
        script_ = {"model": model, "replies": [each.as_json() for each in listed], "context": context}
        self._post("/_script", script_ | {"by_results": by_results, "about": about})

    def release(self, model: str) -> None:
        """Release a model's answers that wait at their `hold` or are `withheld`."""
        self._post("/_release", {"model": model})

    def step(self, model: str) -> None:
        """Let each `stepped` answer of a model send one more chunk."""
        self._post("/_step", {"model": model})

    def reset(self) -> None:
        """Delete all scripts and records, and abort open streams."""
        self._post("/_reset", {})

    def requests(self, model: str | None = None, *, ended: Ended | None = None) -> list[RecordedChat]:
        """Return the chat requests since the last reset that ended so, oldest first."""
        wanted = {"model": model, "ended": ended}
        answer = self._http.get("/_requests", params={name: value for name, value in wanted.items() if value})
        answer.raise_for_status()
        return [RecordedChat(**record) for record in answer.json()]

    def wait_for(
        self, model: str, count: int = 1, *, ended: bool = False, chunks: int = 0, seconds: float = 180.0
    ) -> list[RecordedChat]:
        """Wait for `count` requests for `model`, each with `chunks` sent (and ended, with `ended`); return all."""
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
        """Close the client's connections; the server keeps running."""
        self._http.close()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = self._http.post(path, json=body)
        if answer.is_error:
            raise ValueError(answer.text)


class UpstreamProcess:
    """An upstream in its own process, for a `with` block."""

    def __init__(self, log: Path, port: int = 0, kept: int | None = None) -> None:
        """Prepare the process. Its output goes to `log`; port 0 selects a free one; `kept` requests are recorded."""
        self._log = log
        self._options = ["--port", str(port), *(["--kept", str(kept)] if kept else [])]

    def __enter__(self) -> Self:
        """Start it and wait until it listens."""
        command = [executable, "-m", "tests.support.upstream", *self._options]
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
