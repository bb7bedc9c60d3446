"""What an MCP server may send in one session: each message is measured and judged before the `mcp` package sees it.

The package answers each request of a server, hands each notification on, and decodes all of them in the event loop. So
it gets the answers that it waits for, a bounded number of pings, and nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ...core.json_values import fits
from .failure import BAD_GATEWAY, Failure, no_protocol, too_large
from .large_texts import LargeTexts

Json = dict[str, Any]

_MOST_DEPTH: Final = 64
_MOST_MESSAGES: Final = 20_000
"""Messages of one session, notifications of progress included."""

_PING: Final = "ping"
"""The only request that a server may make: this server offers neither sampling, elicitation nor roots."""

_MOST_PINGS: Final = 100
"""Of one session."""

_LONGEST_NAME: Final = 100
"""Characters of a method or an id."""

_LONGEST_MESSAGE: Final = 2_000

_AT_ONCE_BYTES: Final = 65_536
"""Size of a message that is measured and decoded in the event loop; a larger one is, in a thread."""


@dataclass(frozen=True, slots=True)
class IncomingLimits:
    """Bounds on what one session takes in.

    Attributes:
        answer_bytes: size of one answer, with all that comes before it in its stream.
        answer_values: numbers, strings, arrays, objects and so on in one message.
        session_bytes: size of all of it.
    """

    answer_bytes: int
    answer_values: int
    session_bytes: int


class Incoming:
    """Measures and judges what comes.

    Args:
        limits: the bounds.
        texts: keeps the large strings of results.
    """

    def __init__(self, limits: IncomingLimits, texts: LargeTexts) -> None:
        self.limits = limits
        self._texts = texts
        self._bytes = limits.session_bytes
        self._messages = _MOST_MESSAGES
        self._pings = _MOST_PINGS
        self._pending: set[int | str] = set()

    def expect(self, request_id: int | str) -> None:
        """A request goes out: an answer to it may come."""
        self._pending.add(request_id)

    def answered(self, request_id: int | str) -> None:
        """No further answer to a request may come."""
        self._pending.discard(request_id)

    def receive(self, size: int) -> None:
        """Counts bytes.

        Raises:
            Failure: the session has had too many.
        """
        self._bytes -= size
        if self._bytes < 0:
            raise Failure(BAD_GATEWAY, "The server has sent more in one session than this server takes.")

    async def passed(self, text: bytes) -> bytes | None:
        """A message as the package gets it; None if it gets it not.

        Raises:
            Failure: it is too large, no JSON-RPC, or one too many.
        """
        message, plain = await self._measured(text)
        if "method" not in message:
            if message["id"] not in self._pending:
                return None
            self._pending.discard(message["id"])
            return plain
        if "id" not in message or message["method"] != _PING:
            return None
        self._pings -= 1
        if self._pings < 0:
            raise Failure(BAD_GATEWAY, "The server sends more pings in one session than this server answers.")
        return plain

    async def answer(self, text: bytes, request_id: int | str) -> bytes:
        """The answer to a request, as the package gets it: for another it would wait without end.

        Raises:
            Failure: it is too large, no answer to this request, or one too many.
        """
        message, plain = await self._measured(text)
        if "method" in message or message["id"] != request_id:
            raise no_protocol(error_in(message))
        self._pending.discard(request_id)
        return plain

    async def _measured(self, text: bytes) -> tuple[Json, bytes]:
        self._messages -= 1
        if self._messages < 0:
            raise Failure(BAD_GATEWAY, "The server has sent more messages in one session than this server takes.")
        if len(text) > _AT_ONCE_BYTES:
            return await asyncio.to_thread(self._decoded, text)
        return self._decoded(text)

    def _decoded(self, text: bytes) -> tuple[Json, bytes]:
        """A message, and its text with no number over 64 bits: the package takes them, and no encoder does."""
        if not fits(text, self.limits.answer_values, _MOST_DEPTH):
            raise too_large()
        try:
            message = orjson.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise no_protocol()
        plain = self._plain(message)
        return plain, orjson.dumps(plain)

    def _plain(self, message: Json) -> Json:
        """A message with the members that JSON-RPC 2.0 has, and nothing large in it."""
        plain: Json = {"jsonrpc": "2.0"}
        if "id" in message:
            plain["id"] = _id(message["id"])
        if isinstance(message.get("method"), str):
            # A ping has no parameters.
            return {**plain, "method": message["method"][:_LONGEST_NAME]}
        if isinstance(message.get("result"), dict) and "id" in plain:
            return {**plain, "result": self._texts.put_aside(message["result"])}
        error = error_in(message)
        if error is None or "id" not in plain:
            raise no_protocol(error)
        return {**plain, "error": {"message": "The server did not say what is wrong.", **error}}


def _id(value: Any) -> Any:
    if not isinstance(value, int | str) or (isinstance(value, str) and len(value) > _LONGEST_NAME):
        raise no_protocol()
    return value


def error_in(answer: Any) -> Json | None:
    """The error of a JSON-RPC answer: its code and message."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return None
    message = error.get("message")
    return {"code": error["code"]} | ({"message": message[:_LONGEST_MESSAGE]} if isinstance(message, str) else {})
