"""Limits on a server's messages in one session: each message is checked before the `mcp` package sees it.

The package would answer every request of a server, forward every notification, and decode all of them in the event
loop. So it gets only the answers that it waits for and a bounded number of pings.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from ...admission import Reservation
from ...concurrency.offloading import in_thread
from ...core import json_decoding
from ...core.errors import ApiError
from ...core.json_blocks import blocks
from ...core.json_values import fits
from ...core.types import Json
from .failure import BAD_GATEWAY, Failure, no_protocol, too_large

_MAX_DEPTH: Final = 64
_MAX_MESSAGES: Final = 20_000
"""Maximum number of messages in one session, including progress notifications."""

_PING: Final = "ping"
"""The only request that a server may make: this client supports neither sampling, elicitation nor roots."""

_MAX_PINGS: Final = 100
"""Maximum number in one session."""

_NAME_CHARACTERS: Final = 100
"""Maximum length of a method or an id, in characters."""

_MESSAGE_CHARACTERS: Final = 2_000

_LARGE_CHARACTERS: Final = 4_096
"""Minimum length of a string that the package does not get, in characters."""

_INLINE_BYTES: Final = 65_536
"""Maximum size of a message that is decoded in the event loop; a larger one is decoded in a thread."""


@dataclass(frozen=True, slots=True)
class IncomingLimits:
    """Limits on the data that one session receives.

    Attributes:
        answer_bytes: size of one answer, including everything before it in its stream.
        answer_values: JSON values (numbers, strings, arrays, objects and so on) in one message.
        session_bytes: size of all data.
    """

    answer_bytes: int
    answer_values: int
    session_bytes: int


class LargeTexts:
    """The large strings of one session, which the package would decode and validate in the event loop.

    Their placeholders contain a secret, so that servers cannot guess them.
    """

    def __init__(self) -> None:
        self._secret = token_hex(16)
        self._texts: dict[str, str] = {}

    def replace_large(self, value: Any) -> Any:
        """Replace each large string of a JSON value with a placeholder."""
        match value:
            case str() if len(value) >= _LARGE_CHARACTERS:
                stand_in = f"{self._secret}-{len(self._texts)}"
                self._texts[stand_in] = value
                return stand_in
            case list():
                return [self.replace_large(each) for each in value]
            case dict():
                return {name: self.replace_large(each) for name, each in value.items()}
        return value

    def restore_large(self, value: Any) -> Any:
        """Restore the large strings of a JSON value, or of each value of a tuple."""
        if not self._texts:
            return value
        match value:
            case str():
                return self._texts.get(value, value)
            case list():
                return [self.restore_large(each) for each in value]
            case tuple():
                return tuple(self.restore_large(each) for each in value)
            case dict():
                return {name: self.restore_large(each) for name, each in value.items()}
        return value


class IncomingMessages:
    """The check of a session's incoming messages.

    Args:
        limits: the limits.
        texts: stores the large strings of results.
        held: counts what has been received of unfinished answers.
    """

    def __init__(self, limits: IncomingLimits, texts: LargeTexts, held: Reservation) -> None:
        self.limits = limits
        self._held = held
        self._texts = texts
        self._bytes = limits.session_bytes
        self._messages = _MAX_MESSAGES
        self._pings = _MAX_PINGS
        self._pending: set[int | str] = set()

    def expect(self, request_id: int | str) -> None:
        """Register a request, so that its answer is accepted."""
        self._pending.add(request_id)

    def answered(self, request_id: int | str) -> None:
        """Reject further answers to a request."""
        self._pending.discard(request_id)

    def receive(self, size: int) -> None:
        """Count received bytes.

        Raises:
            Failure: the session is over its limit.
        """
        self._bytes -= size
        if self._bytes < 0:
            raise Failure(BAD_GATEWAY, "The server has sent more in one session than this server allows.")

    def hold(self, size: int) -> None:
        """Count bytes of an unfinished answer.

        Raises:
            Failure: the user of the session, or all users, hold too much.
        """
        try:
            self._held.add(size)
        except ApiError as error:
            raise Failure(BAD_GATEWAY, error.message) from error

    def drop(self, size: int) -> None:
        """Subtract such bytes: the answer is finished."""
        self._held.resize(max(self._held.units - size, 0))

    async def passed(self, text: bytes | bytearray) -> bytes | None:
        """Check a message of a stream; return it for the package, or None to drop it.

        Raises:
            Failure: it is too large, not JSON-RPC, or over a message limit.
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
        """Check the answer to a request and return it for the package, which would wait forever for another one.

        Raises:
            Failure: it is too large, not the answer to this request, or over the message limit.
        """
        message, plain = await self._measured(text)
        if "method" in message or message["id"] != request_id:
            raise no_protocol(error_in(message))
        self._pending.discard(request_id)
        return plain

    async def _measured(self, text: bytes | bytearray) -> tuple[Json, bytes]:
        self._messages -= 1
        if self._messages < 0:
            raise Failure(BAD_GATEWAY, "The server has sent more messages in one session than this server allows.")
        if len(text) > _INLINE_BYTES:
            return await in_thread(self._decoded, text)
        return self._decoded(text)

    def _decoded(self, text: bytes | bytearray) -> tuple[Json, bytes]:
        """Decode a message, and encode it without integers over 64 bits: the package accepts them, encoders do not."""
        if not fits(text, self.limits.answer_values, _MAX_DEPTH):
            raise too_large()
        try:
            message = json_decoding.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise no_protocol()
        plain = self._plain(message)
        return plain, b"".join(blocks(plain))

    def _plain(self, message: Json) -> Json:
        """Return a message with only the members of JSON-RPC 2.0, and with large strings replaced."""
        plain: Json = {"jsonrpc": "2.0"}
        if "id" in message:
            plain["id"] = _id(message["id"])
        if isinstance(message.get("method"), str):
            # `params` is omitted: a ping has none.
            return {**plain, "method": message["method"][:_NAME_CHARACTERS]}
        if isinstance(message.get("result"), dict) and "id" in plain:
            return {**plain, "result": self._texts.replace_large(message["result"])}
        error = error_in(message)
        if error is None or "id" not in plain:
            raise no_protocol(error)
        return {**plain, "error": {"message": "The server sent an error without a message.", **error}}


def _id(value: Any) -> Any:
    if not isinstance(value, int | str) or (isinstance(value, str) and len(value) > _NAME_CHARACTERS):
        raise no_protocol()
    return value


def error_in(answer: Any) -> Json | None:
    """Return the code and message of a JSON-RPC error; None if there is none, or it is invalid."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return None
    message = error.get("message")
    return {"code": error["code"]} | ({"message": message[:_MESSAGE_CHARACTERS]} if isinstance(message, str) else {})
