"""An MCP server whose every answer is scripted by the test.

hostile = Hostile(web)
hostile.answers["tools/call"] = lambda asked: events(*[message(PROGRESS)] * 500, result(asked, DONE))
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from tests.support.web import Answer, ReceivedRequest, Web

type Json = dict[str, Any]
type Method = Callable[[Json], Answer | Json]

EVENTS: Final = {"content-type": "text/event-stream"}
JSON: Final = {"content-type": "application/json"}
DONE: Final = {"content": [{"type": "text", "text": "done"}]}
PROGRESS: Final = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


class HostileMcpServer:
    """A scripted MCP server at one path of a web server, or at all paths.

    Attributes:
        answers: by method: the result, or the whole HTTP answer.
    """

    def __init__(self, web: Web, path: str | None = None) -> None:
        """Create a server with one tool, `add`, which returns 3."""
        self.answers: dict[str, Method] = {
            "initialize": lambda request: {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/list": lambda _: {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
            "tools/call": lambda _: {"content": [{"type": "text", "text": "3"}]},
        }
        self.web = web
        if path is None:
            web.answer_all = self._answer
        else:
            web.answers[path] = self._answer

    @property
    def methods(self) -> list[str]:
        """The JSON-RPC methods requested, without notifications."""
        bodies = [request.json() for request in self.web.seen if request.method == "POST"]
        return [body["method"] for body in bodies if "id" in body]

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.method != "POST":
            return Answer(status=405)
        message = request.json()
        if "id" not in message:
            return Answer(status=202)
        method = self.answers.get(message["method"])
        if method is None:
            return json_answer(
                {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "No such method."}}
            )
        answer = method(message)
        if isinstance(answer, Answer):
            return answer
        session = {"mcp-session-id": "s1"} if message["method"] == "initialize" else {}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": answer}, headers=session)


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return a JSON answer."""
    return Answer(orjson.dumps(body), status, {**JSON, **headers})


def events(*pieces: bytes) -> Answer:
    """Return a stream of events."""
    return Answer(pieces, 200, EVENTS)


def event(message: Json, *fields: bytes) -> bytes:
    """Encode a message as an event, after these lines."""
    return b"\n".join([*fields, b"data: " + orjson.dumps({"jsonrpc": "2.0", **message}), b"", b""])


def answer(request: Json, result: Json) -> bytes:
    """Encode the answer to a request as an event."""
    return event({"id": request["id"], "result": result})


def endless(piece: bytes) -> Iterator[bytes]:
    """Repeat a piece endlessly."""
    while True:
        yield piece


ENDLESS_STREAMS: Final[Mapping[str, bytes]] = {
    "line": b"data: " + b"x" * 10_000,
    "no_field": b"x" * 10_000,
    "lines": b"data: x\n" * 1_000,
    "comments": b": ping\n\n" * 1_000,
    "empty": b"\n" * 10_000,
    "other_events": b"event: other\ndata: {}\n\n" * 500,
    "progress": event(PROGRESS) * 100,
}
"""Endless streams that contain no answer."""

OVERFULL: Final[Mapping[str, bytes]] = {
    "objects": b'{"a":' * 15_000,
    "arrays": b"[" * 90_000,
    "values": b"[]," * 30_000,
}
"""JSON with too many values."""


def overfull(request: Json, body: bytes) -> bytes:
    """Return the beginning of an answer with this content."""
    return b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "structuredContent": {"a": ' % request["id"] + body
