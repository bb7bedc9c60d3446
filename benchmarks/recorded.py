"""A model server that answers with recorded chat completions, to run the hosts' own test suites against a stack.

The recordings are the files that OGX's tests keep (`tests/integration/*/recordings/*.json` of its repository). Requests
of another provider never match them letter by letter, so each gets the answer to the most similar recorded request, and
each text the recorded embedding of the most similar text. Tools of MCP servers and of searches have other names in each
provider: those of an answer are replaced by those of the request. Below `/search` it is a SearXNG with two fixed
results.

    python -m benchmarks.recorded FOLDER [PORT]

docs/reference/compatibility.md says how to run the suites with it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

type Json = dict[str, Any]

PORT: Final = 8100
_CHAT: Final = "/chat/completions"
_EMBEDDINGS: Final = "/embeddings"
_RESULTS: Final = [
    {"title": "Llama 4 Maverick", "url": "https://www.example.com/maverick", "content": "Maverick has 128 experts."},
    {"title": "Experts", "url": "https://www.example.com/experts", "content": "A mixture of 128 experts."},
]
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


@dataclass(frozen=True, slots=True)
class Embedding:
    """A recorded embedding.

    Attributes:
        model: the model's name.
        words: the words of the text.
        vector: its embedding, as the API has it.
    """

    model: str
    words: frozenset[str]
    vector: Sequence[float] | str


def shape_of(request: Mapping[str, Any]) -> tuple[Sequence[str], frozenset[str], frozenset[str]]:
    """Return the roles, the names of tools, and the words of a chat request."""
    messages = [message for message in request.get("messages", ()) if message["role"] not in ("system", "developer")]
    tools = frozenset(map(_plain, _names(request)))
    content = json.dumps([[message.get("content"), message.get("tool_calls")] for message in messages])
    return [message["role"] for message in messages], tools, frozenset(_WORD.findall(content.lower()))


def _names(request: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the tools of a chat request."""
    return [tool["function"]["name"] for tool in request.get("tools") or () if "function" in tool]


def _plain(name: str) -> str:
    """Return a tool's name as all providers know it: without the label of its server."""
    plain = name.rpartition("__")[2]
    return "file_search" if plain == "knowledge_search" else plain


def _option(body: Mapping[str, Any], name: str) -> Any:
    """Return an option of a chat request; of the format, only its type, since providers add to a schema."""
    value = body.get(name)
    return value.get("type") if isinstance(value, dict) and name == "response_format" else value


def answer_to(request: Mapping[str, Any], recording: Recording) -> Iterator[Json]:
    """Yield the recorded chunks, with the names of the request's tools."""
    names = {_plain(name): name for name in _names(request)}
    for chunk in json.loads(json.dumps(recording.chunks)):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                if name := (call.get("function") or {}).get("name"):
                    call["function"]["name"] = names.get(_plain(name), name)
        yield chunk


def read(held: Json) -> Recording | None:
    """Return the streamed chat completion of a file's value; None if it has something else."""
    request, body = held["request"], held["response"].get("body")
    if not str(request.get("url")).endswith(_CHAT) or not isinstance(body, list):
        return None
    shape, tools, words = shape_of(request["body"])
    sent = request["body"]
    chunks = [chunk["__data__"] for chunk in body]
    return Recording(sent["model"], shape, tools, words, [_option(sent, name) for name in _OPTIONS], chunks)


def read_embeddings(held: Json) -> Iterator[Embedding]:
    """Yield the embeddings of a file's value; nothing if it has something else."""
    request, body = held["request"], held["response"].get("body")
    if not str(request.get("url")).endswith(_EMBEDDINGS) or not isinstance(body, dict):
        return
    for text, found in zip(_texts(request["body"]), body["__data__"]["data"], strict=True):
        yield Embedding(request["body"]["model"], _words(text), found["embedding"])


def _texts(body: Json) -> list[str]:
    return [body["input"]] if isinstance(body["input"], str) else body["input"]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _most_similar_text(embeddings: Iterable[Embedding], words: frozenset[str]) -> Embedding:
    return max(embeddings, key=lambda each: _overlap(each.words, words))


def embedded(embeddings: Sequence[Embedding], body: Json) -> Json:
    """Return the answer to a request for embeddings: for each text that of the most similar one of this model."""
    model = [each for each in embeddings if each.model == body["model"]] or embeddings
    found = [_most_similar_text(model, _words(text)) for text in _texts(body)]
    data = [{"object": "embedding", "index": index, "embedding": each.vector} for index, each in enumerate(found)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def most_similar(recordings: Iterable[Recording], request: Mapping[str, Any]) -> Recording | None:
    """Return the recording whose request is most like this one: model, roles, tools, words, then options."""
    shape, tools, words = shape_of(request)
    options = [_option(request, name) for name in _OPTIONS]

    def likeness(each: Recording) -> tuple[bool, bool, bool, float, int]:
        same = sum(one == other for one, other in zip(each.options, options, strict=True))
        is_model = each.model == request["model"]
        return is_model, each.shape == shape, _overlap(each.tools, tools) == 1, _overlap(each.words, words), same

    return max(recordings, key=likeness, default=None)


def _overlap(some: frozenset[str], others: frozenset[str]) -> float:
    return len(some & others) / len(some | others) if some | others else 1.0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """List the models, or find the fixed results."""
        if self.path.startswith("/search"):
            self._answer(json.dumps({"query": "", "results": _RESULTS, "number_of_results": 2}).encode())
            return
        names = sorted(
            {*(each.model for each in self.server.recordings), *(each.model for each in self.server.embeddings)}
        )
        self._answer(
            json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()
        )

    def do_POST(self) -> None:
        """Answer a chat completion, or embed texts."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith(_EMBEDDINGS) and self.server.embeddings:
            self._answer(json.dumps(embedded(self.server.embeddings, request)).encode())
            return
        found = most_similar(self.server.recordings, request)
        if found is None or not self.path.endswith(_CHAT):
            self.send_error(404)
            return
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in answer_to(request, found)]
        self._answer("".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    def _answer(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def __init__(self, port: int, recordings: Sequence[Recording], embeddings: Sequence[Embedding]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.recordings = recordings
        self.embeddings = embeddings


def main(folder: Path, port: int = PORT) -> None:
    """Serve the recordings under `folder` until Ctrl-C."""
    values = [json.loads(file.read_text()) for file in sorted(folder.rglob("recordings/*.json"))]
    recordings = [found for held in values if (found := read(held))]
    embeddings = [found for held in values for found in read_embeddings(held)]
    if not recordings:
        sys.exit(f"There are no recorded chat completions under {folder}.")
    with _Server(port, recordings, embeddings) as server:
        sys.stdout.write(f"{len(recordings)} recorded answers at http://127.0.0.1:{server.server_port}/v1\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
