"""A model server that answers with recorded chat completions, to run the hosts' own test suites against a stack.

The recordings are the files that OGX's tests keep (`tests/integration/*/recordings/*.json` of its repository). Requests
of another provider never match them letter by letter, so each gets the answer to the most similar recorded request.

    python -m benchmarks.recorded FOLDER [PORT]

docs/reference/compatibility.md says how to run the suites with it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

type Json = dict[str, Any]

PORT: Final = 8100
_CHAT: Final = "/chat/completions"
_OPTIONS: Final = ("stream_options", "service_tier", "response_format", "parallel_tool_calls")
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded chat completion.

    Attributes:
        model: the model's name.
        shape: the roles of the request's messages.
        tools: the names of its tools.
        words: the words of its messages.
        options: the values of `_OPTIONS` in the request.
        chunks: the answer, as the chunks of a stream.
    """

    model: str
    shape: Sequence[str]
    tools: frozenset[str]
    words: frozenset[str]
    options: Sequence[Any]
    chunks: Sequence[Json]


def shape_of(request: Mapping[str, Any]) -> tuple[Sequence[str], frozenset[str], frozenset[str]]:
    """Return the roles, the names of tools, and the words of a chat request."""
    messages = [message for message in request.get("messages", ()) if message["role"] not in ("system", "developer")]
    tools = frozenset(tool["function"]["name"] for tool in request.get("tools") or () if "function" in tool)
    said = json.dumps([[message.get("content"), message.get("tool_calls")] for message in messages])
    return [message["role"] for message in messages], tools, frozenset(_WORD.findall(said.lower()))


def read(file: Path) -> Recording | None:
    """Return the streamed chat completion of a file; None if it has something else."""
    held = json.loads(file.read_text())
    request, body = held["request"], held["response"].get("body")
    if not str(request.get("url")).endswith(_CHAT) or not isinstance(body, list):
        return None
    shape, tools, words = shape_of(request["body"])
    asked = request["body"]
    chunks = [chunk["__data__"] for chunk in body]
    return Recording(asked["model"], shape, tools, words, [asked.get(name) for name in _OPTIONS], chunks)


def most_similar(recordings: Iterable[Recording], request: Mapping[str, Any]) -> Recording | None:
    """Return the recording whose request is most like this one: its roles, its tools, its words, then its options."""
    shape, tools, words = shape_of(request)
    options = [request.get(name) for name in _OPTIONS]

    def likeness(each: Recording) -> tuple[bool, bool, float, int]:
        same = sum(one == other for one, other in zip(each.options, options, strict=True))
        return each.shape == shape, _overlap(each.tools, tools) == 1, _overlap(each.words, words), same

    return max(recordings, key=likeness, default=None)


def _overlap(some: frozenset[str], others: frozenset[str]) -> float:
    return len(some & others) / len(some | others) if some | others else 1.0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """List the models."""
        names = sorted({each.model for each in self.server.recordings})
        self._answer(
            json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()
        )

    def do_POST(self) -> None:
        """Answer a chat completion."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = most_similar(self.server.recordings, request)
        if found is None or not self.path.endswith(_CHAT):
            self.send_error(404)
            return
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in found.chunks]
        self._answer("".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    def _answer(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def __init__(self, port: int, recordings: Sequence[Recording]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.recordings = recordings


def main(folder: Path, port: int = PORT) -> None:
    """Serve the recordings under `folder` until Ctrl-C."""
    recordings = [found for file in sorted(folder.rglob("recordings/*.json")) if (found := read(file))]
    if not recordings:
        sys.exit(f"There are no recorded chat completions under {folder}.")
    with _Server(port, recordings) as server:
        sys.stdout.write(f"{len(recordings)} recorded answers at http://127.0.0.1:{server.server_port}/v1\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
