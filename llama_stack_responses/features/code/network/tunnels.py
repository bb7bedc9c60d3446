"""Tunnels, through which only TLS for their host passes, whether the proxy reads what is in them or not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .host_names import host_of
from .proxy_streams import HANDSHAKE_SECONDS, Refused, Stream

_HELLO_BYTES: Final = 2**16
_READ_BYTES: Final = 2**16


async def tunnel(client: Stream, target: Stream, host: str) -> None:
    """Pass on data both ways until both sides have ended, if it begins a TLS connection with this host.

    Raises:
        Refused: it does not.
        OSError: a connection failed.
    """
    await target.write(await _hello(client, host))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass_on(client, target))
            group.create_task(_pass_on(target, client))
    except* (OSError, Refused) as errors:
        raise errors.exceptions[0] from None


async def _pass_on(source: Stream, sink: Stream) -> None:
    while data := await source.read():
        await sink.write(data)
    sink.end()


class TlsStream:
    """The data in a tunnel whose TLS connection ends here."""

    def __init__(self, stream: Stream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._stream, self._tls = stream, tls
        self._incoming, self._outgoing = incoming, outgoing

    @classmethod
    async def accepted(cls, client: Stream, host: str, context: ssl.SSLContext) -> TlsStream:
        """Begin TLS with a client that asks for this host, with the certificate of a context.

        Raises:
            Refused: it does not ask for it, or refuses the certificate.
            OSError: the connection failed.
        """
        hello = await _hello(client, host)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming.write(hello)
        stream = cls(client, context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await stream._when_read(stream._tls.do_handshake)
        except ssl.SSLError as error:
            why = (error.reason or "it broke off").lower().replace("_", " ")
            raise Refused(400, f"TLS with the proxy of this container, for '{host}', failed: {why}.", host) from error
        return stream

    async def read(self) -> bytes:
        """Return the next data; empty at the end.

        Raises:
            Refused: the container has used up its traffic.
            OSError: the connection failed.
        """
        try:
            return await self._when_read(lambda: self._tls.read(_READ_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        """Send data.

        Raises:
            OSError: the connection failed.
        """
        self._tls.write(data)
        await self._flush()

    async def linger(self) -> None:
        """End sending, and read what the other side still sends, for a moment."""
        await self._end()
        await self._stream.linger()

    async def finish(self) -> None:
        """Send what is still buffered, and close the connection."""
        await self._end()
        await self._stream.finish()

    def abort(self) -> None:
        """Close the connection at once."""
        self._stream.abort()

    async def _end(self) -> None:
        with suppress(OSError):
            try:
                self._tls.unwrap()
            finally:
                await self._flush()

    async def _when_read[Result](self, act: Callable[[], Result]) -> Result:
        """Return the result of an act, once what it needs was received."""
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                pass
            finally:
                await self._flush()
            if data := await self._stream.read():
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._stream.write(data)


async def _hello(client: Stream, host: str) -> bytes:
    """Return the beginning of a TLS connection with this host.

    Raises:
        Refused: it is something else.
        OSError: the client is gone.
    """
    named: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        named.append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # the handshake is only read

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming, outgoing, hello = ssl.MemoryBIO(), ssl.MemoryBIO(), b""
    handshake = context.wrap_bio(incoming, outgoing, server_side=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            while len(hello) < _HELLO_BYTES:
                if not (data := await client.read()):
                    raise ConnectionResetError
                hello += data
                incoming.write(data)
                try:
                    handshake.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError:
                    break
    if named and named[0] and host_of(named[0]) == host:
        return hello
    if named:
        raise Refused(403, f"TLS in the tunnel to '{host}' does not name that host (SNI).", host, outgoing.read())
    raise Refused(403, f"The tunnel to '{host}' is for TLS only, which has not begun in it.", host, outgoing.read())
