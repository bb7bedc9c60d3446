"""HTTP requests of a container, forwarded to their host with secrets in place of placeholders."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import h11

from .host_names import host_of
from .proxy_streams import ByteStream, Refused
from .secrets import Mask, Placeholders, SecretForms

_HEAD_BYTES: Final = 2**16
"""Maximum size of the head of a request with its secrets, and of the head of an answer."""

_OF_CONNECTION: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade expect".split()
)
"""Headers that are meant for the next server only, or for this proxy."""

_ERRORS: Final = {
    400: "http_request_error",
    403: "http_request_denied",
    408: "http_request_error",
    431: "http_request_error",
    502: "destination_unavailable",
    503: "connection_limit_reached",
    504: "http_response_timeout",
}
"""The kinds of errors of a proxy (RFC 9209, section 2.3), by status."""

_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY: Final = re.compile("([^:]*)(?::([0-9]{1,5}))?")
_TOKEN: Final = re.compile(rb"[^,\s]+")
_QUOTED: Final = re.compile(rb'["\\]')

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    Attributes:
        placeholders: those of the host's secrets; None if it has none.
        secrets: the secrets of the host.
    """

    scheme: str
    host: str
    port: int
    placeholders: Placeholders | None
    secrets: SecretForms

    @property
    def authority(self) -> str:
        """The host, and the port if it is not that of the scheme."""
        return self.host if self.port == _PORTS[self.scheme] else f"{self.host}:{self.port}"

    def is_named_by(self, authority: str) -> bool:
        """Return whether an authority, such as that of a `host` header, is this host with this port."""
        found = _AUTHORITY.fullmatch(authority)
        port = int(found[2]) if found and found[2] else _PORTS[self.scheme]
        return found is not None and (host_of(found[1]), port) == (self.host, self.port)


class HttpStream:
    """A connection of HTTP/1.1.

    Args:
        stream: the connection.
        role: `h11.CLIENT` or `h11.SERVER`: which side this is.
    """

    def __init__(self, stream: ByteStream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.http = h11.Connection(role, **({"max_incomplete_event_size": _HEAD_BYTES} if role is h11.CLIENT else {}))

    async def event(self) -> Any:
        """Return the next event of the other side.

        Raises:
            h11.RemoteProtocolError: it violates the protocol.
            OSError: the connection failed.
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read())
        return event

    async def send(self, event: Any) -> None:
        """Send an event.

        Raises:
            OSError: the connection failed.
        """
        if data := self.http.send(event):
            await self.stream.write(data)

    async def refuse(self, refused: Refused) -> None:
        """Answer that a request, or what is in a tunnel, is refused, if no answer has begun.

        The connection can only be closed then.
        """
        if self.http.our_state is h11.SWITCHED_PROTOCOL and refused.alert is not None:
            await self._alert(refused, refused.alert)
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        sentence = str(refused).encode("ascii", "replace")
        kind = _ERRORS.get(refused.status, "http_request_error").encode()
        headers = [
            (b"content-type", b"text/plain"),
            (b"content-length", b"%d" % (len(sentence) + 1)),
            (b"connection", b"close"),
            (b"proxy-status", b'container; error=%b; details="%b"' % (kind, _QUOTED.sub(rb"\\\g<0>", sentence))),
        ]
        # Clients that show more than the status of a refused tunnel show its reason, but not the body.
        await self.send(h11.Response(status_code=refused.status, headers=headers, reason=sentence))
        await self.send(h11.Data(data=sentence + b"\n"))
        await self.send(h11.EndOfMessage())
        await self.stream.linger()

    async def _alert(self, refused: Refused, alert: bytes) -> None:
        if alert:
            await self.stream.write(alert)
            await self.stream.linger()
        else:
            await HttpStream(self.stream, h11.SERVER).refuse(refused)

    def is_idle(self) -> bool:
        """Return whether no request has begun."""
        return self.http.their_state is h11.IDLE and not self.http.trailing_data[0]

    def continues(self) -> bool:
        """Return whether another request may follow."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


async def forward(
    client: HttpStream, request: h11.Request, path: bytes, target: Target, connect: Callable[[], Awaitable[ByteStream]]
) -> None:
    """Forward a request to its target, and the answer to the client.

    Args:
        path: the target of the request without its host.
        connect: connects to the target.

    Raises:
        Refused: the request may not be sent, or there is no answer; an answer may have begun.
        OSError: the client is gone.
    """
    headers = _sent_headers(request, target)
    upstream = HttpStream(await connect(), h11.CLIENT)
    sent = h11.Request(method=request.method, target=path, headers=headers)
    sending = asyncio.create_task(_send(client, upstream, sent))
    try:
        await _answer(client, upstream, target, Mask(target.secrets))
    except Refused as refused:
        # The connection to the target has ended because of what the client sent: that is not the target's fault.
        raise (sending.result() if sending.done() else None) or refused from None
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        upstream.stream.abort()


def _sent_headers(request: h11.Request, target: Target) -> Headers:
    """Return the headers that the target gets.

    Raises:
        Refused: they are ambiguous, for another host, or too large, or would send a secret without TLS.
    """
    _check_framing(request.headers, target)
    headers: Headers = [(b"host", target.authority.encode()), (b"connection", b"close")]
    for name, value in _passed(request.headers):
        if name in (b"host", b"accept-encoding") and (name == b"host" or target.placeholders):
            continue
        given = value.decode("latin-1")
        replaced = target.placeholders.replaced(given) if target.placeholders else given
        if replaced != given and target.scheme != "https":
            raise Refused(403, f"Secrets of '{target.host}' are sent by HTTPS only.", target.host)
        headers.append((name, replaced.encode("latin-1")))
    if sum(len(name) + len(value) for name, value in headers) > _HEAD_BYTES:
        raise Refused(431, "The headers of the request are too large.", target.host)
    if target.placeholders:
        # Secrets are found only in an answer that is not compressed.
        headers.append((b"accept-encoding", b"identity"))
    return headers


def _check_framing(headers: Iterable[tuple[bytes, bytes]], target: Target) -> None:
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refused(400, "The request has both 'transfer-encoding' and 'content-length'.", target.host)
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if not all(target.is_named_by(value) for value in hosts):
        raise Refused(403, f"The 'host' header of a request to '{target.host}' names another host.", target.host)


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that are not meant for the next server only."""
    given = list(headers)
    named = {each.lower() for name, value in given if name == b"connection" for each in _TOKEN.findall(value)}
    # A sender cannot declare the headers that delimit a message as meant for one connection.
    dropped = _OF_CONNECTION | (named - {b"transfer-encoding", b"content-length", b"host"})
    return [(name, value) for name, value in given if name not in dropped]


async def _send(client: HttpStream, upstream: HttpStream, request: h11.Request) -> Refused | None:
    """Send a request with its body. If that is wrong, return why; the connection to the target has ended then."""
    try:
        await upstream.send(request)
        if client.http.they_are_waiting_for_100_continue:
            await client.send(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await client.event(), h11.Data):
            await upstream.send(h11.Data(data=event.data))
        if isinstance(event, h11.EndOfMessage):
            await upstream.send(h11.EndOfMessage())
    except OSError:
        return None  # the target may have answered without reading it
    except h11.ProtocolError:
        upstream.stream.abort()
        return Refused(400, "The body of the request is not valid HTTP/1.1.")
    except Refused as refused:
        upstream.stream.abort()
        return refused
    return None


async def _answer(client: HttpStream, upstream: HttpStream, target: Target, mask: Mask) -> None:
    with _failures_of(target):
        while not isinstance(event := await upstream.event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise Refused(502, f"'{target.host}' has closed the connection without an answer.", target.host)
    await client.send(_masked_head(event, mask))
    while True:
        with _failures_of(target):
            event = await upstream.event()
        if not isinstance(event, h11.Data):
            break
        if data := await _masked(bytes(event.data), mask):
            await client.send(h11.Data(data=data))
    if not isinstance(event, h11.EndOfMessage):
        raise Refused(502, f"'{target.host}' has closed the connection within its answer.", target.host)
    if data := mask.end():
        await client.send(h11.Data(data=data))
    await client.send(h11.EndOfMessage())


def _masked_head(response: h11.Response, mask: Mask) -> h11.Response:
    """Return the beginning of an answer without secrets."""
    headers = _passed(response.headers)
    reason, *values = mask.lines([bytes(response.reason), *(value for _, value in headers)])
    names = mask.header_names(name for name, _ in headers)
    # Without headers, one name is empty.
    masked = list(zip(names, values, strict=False))
    return h11.Response(status_code=response.status_code, headers=masked, reason=reason)


async def _masked(data: bytes, mask: Mask) -> bytes:
    """Return what follows in the body of an answer without secrets. Other connections go on between its pieces."""
    pieces = []
    for piece in mask.pieces(data):
        pieces.append(piece)
        await asyncio.sleep(0)
    return b"".join(pieces)


@contextmanager
def _failures_of(target: Target) -> Iterator[None]:
    """Raise `Refused` if a target fails."""
    try:
        yield
    except h11.RemoteProtocolError as error:
        raise Refused(502, f"The answer of '{target.host}' is not valid HTTP/1.1.", target.host) from error
    except OSError as error:
        raise Refused(502, f"The connection to '{target.host}' has failed.", target.host) from error
