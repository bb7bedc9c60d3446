"""Tunnels for TLS that the proxy does not read, except for the host that the client names at their beginning."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from .host_names import host_of
from .proxy_streams import Refused, Stream

_HELLO_BYTES: Final = 2**16


async def tunnel(client: Stream, target: Stream, host: str) -> None:
    """Pass on data both ways until both sides have ended, if it begins a TLS connection with this host.

    Raises:
        Refused: it does not.
        OSError: a connection failed.
    """
    hello, named = await _hello(client)
    if named is None or host_of(named) != host:
        raise Refused(403, f"The tunnel to '{host}' does not begin with TLS for this host.", host)
    await target.write(hello)
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


async def _hello(client: Stream) -> tuple[bytes, str | None]:
    """Return the beginning of a TLS connection, and the host that it names; None if there is none."""
    named: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        named.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # the handshake is only read

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming, hello = ssl.MemoryBIO(), b""
    handshake = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    while len(hello) < _HELLO_BYTES and (data := await client.read()):
        hello += data
        incoming.write(data)
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            break
    return hello, named[0] if named else None
