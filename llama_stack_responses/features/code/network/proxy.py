"""The proxy of one container, in a process of its own: lets the container's code reach the hosts of its policy.

Code connects to a socket that was opened inside the container, whose network leads nowhere else. The proxy takes the
requests of HTTP proxies: requests with a whole URL, and `CONNECT` for TLS. It resolves names itself, and connects only
to addresses that the server's address policy allows. If a host has secrets, it ends the TLS connection and begins
another one, to put them into requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import h11

from ....fetch.address_policy import AddressPolicy, UrlRefused
from .forwarding import HttpStream, Target, forward
from .host_names import host_of
from .proxy_settings import ProxySettings, shared_count
from .proxy_streams import Deadline, Refused, Stream, Traffic, connected
from .secrets import Placeholders, SecretForms
from .tunnels import TlsStream, tunnel

_BACKLOG: Final = 64
_ANSWER_SECONDS: Final = 2.0
_LOOKUP_SECONDS: Final = 10.0
_NICENESS: Final = 10
_NO_SECRETS: Final = SecretForms()
_TARGET: Final = re.compile(r"([A-Za-z0-9_.-]+):([0-9]{1,5})")
_ORIGIN: Final = re.compile(rb"/[!-~]*|\*")

Report = Callable[[Refused], None]
"""Called with each refused request."""


class Proxy:
    """Serves the connections of one container.

    Args:
        traffic: how much it may still send and receive.
    """

    def __init__(self, settings: ProxySettings, report: Report, traffic: Traffic) -> None:
        self._settings = settings
        self._report = report
        self._traffic = traffic
        self._open = 0
        self._addresses = AddressPolicy(
            [ip_network(each) for each in settings.networks],
            [IPv6Network(each) for each in settings.nat64],
            resolve=_resolved,
        )
        self._trust = ssl.create_default_context(cadata=settings.trust)
        self._trust.set_alpn_protocols(["http/1.1"])
        self._secrets = {
            host: (Placeholders(values), SecretForms(values.values())) for host, values in settings.secrets.items()
        }
        self._inner = {host: _server_context(pem) for host, pem in settings.certificates.items()}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, until its end or its limit."""
        self._open += 1
        settings = self._settings
        timeout = asyncio.timeout(settings.seconds)
        deadline = Deadline(timeout, settings.seconds, settings.idle_seconds)
        stream = Stream(reader, writer, self._traffic, deadline)
        connector = _Connector(self._addresses, self._trust, self._traffic, deadline)
        serving = _Serving(stream, HttpStream(stream, h11.SERVER), connector)
        try:
            async with timeout:
                deadline.extend()
                if self._open > settings.connections:
                    await self._full(serving.client)
                else:
                    await self._requests(serving)
                await serving.client.stream.finish()
        except (OSError, h11.ProtocolError):
            # The code, or the host, has ended the connection, unless its time has.
            if timeout.expired():
                await self._overdue(serving, deadline)
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _overdue(self, serving: _Serving, deadline: Deadline) -> None:
        """Answer the request of a connection whose time is over, if there is one, and report it."""
        client = serving.client
        if client.is_idle():
            return
        is_received = client.http.their_state not in (h11.IDLE, h11.SEND_BODY)
        refused = Refused(504 if is_received else 408, deadline.reason(), serving.host)
        self._report(refused)
        with suppress(OSError, h11.ProtocolError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await client.refuse(refused)

    async def _requests(self, serving: _Serving) -> None:
        """Serve the requests of a connection that does not use TLS with the proxy."""
        client, connector = serving.client, serving.connector

        async def handle(request: h11.Request) -> None:
            self._traffic.check()
            if request.method == b"CONNECT":
                await self._connect(serving, request)
                return
            target, path = self._of_url(request)
            serving.host = target.host
            await forward(client, request, path, target, lambda: connector.connect(target))
            serving.host = ""

        await self._each(client, handle)

    async def _full(self, client: HttpStream) -> None:
        """Refuse a connection beyond their number, without reading from it."""
        limit = f"{self._settings.connections} connections at the same time"
        refused = Refused(503, f"The container has {limit}, which is the maximum.")
        self._report(refused)
        await client.refuse(refused)

    async def _each(self, client: HttpStream, handle: Callable[[h11.Request], Any]) -> None:
        """Call `handle` with each request, and answer those that it refuses."""
        try:
            while isinstance(request := await client.event(), h11.Request):
                await handle(request)
                if not client.continues():
                    return
        except Refused as refused:
            self._report(refused)
            await client.refuse(refused)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            too_large = status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            message = "The headers of the request are too large." if too_large else "The request is not valid HTTP/1.1."
            await client.refuse(Refused(status, message))

    async def _connect(self, serving: _Serving, request: h11.Request) -> None:
        """Serve a tunnel, with the requests in it if its host has secrets."""
        client = serving.client
        found = _TARGET.fullmatch(request.target.decode("latin-1"))
        if found is None:
            raise Refused(403, "A tunnel needs a host name and a port, such as 'example.com:443', and no IP address.")
        target = self._target("https", found[1], int(found[2]))
        serving.host = target.host
        while isinstance(await client.event(), h11.Data):
            pass
        if client.http.trailing_data[0]:
            raise Refused(400, "Data was sent before the tunnel was open.", target.host)
        if target.placeholders:
            await self._within_tls(serving, target)
            return
        upstream = await serving.connector.connect(target, tls=False)
        try:
            await _accept(client)
            await tunnel(serving.stream, upstream, target.host)
        finally:
            upstream.abort()

    async def _within_tls(self, serving: _Serving, target: Target) -> None:
        await _accept(serving.client)
        tls = await TlsStream.accepted(serving.stream, target.host, self._inner[target.host])
        inner = serving.client = HttpStream(tls, h11.SERVER)

        async def handle(request: h11.Request) -> None:
            if not _ORIGIN.fullmatch(request.target) or request.method in (b"CONNECT", b"TRACE"):
                raise Refused(400, "A request in a tunnel has a path as its target.", target.host)
            await forward(inner, request, request.target, target, lambda: serving.connector.connect(target))

        await self._each(inner, handle)

    def _of_url(self, request: h11.Request) -> tuple[Target, bytes]:
        """Return the target of a request with a whole URL, and the path.

        Raises:
            Refused: it is not allowed, or has no such URL.
        """
        try:
            url = urlsplit(request.target.decode("ascii"))
            port = url.port
        except ValueError:
            raise Refused(400, "The URL of the request is not valid.") from None
        if url.scheme != "http" or not url.hostname or "@" in url.netloc or request.method == b"TRACE":
            raise Refused(400, "This is a proxy: send a request for 'http://HOST/', or CONNECT for HTTPS.")
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return self._target("http", url.hostname, 80 if port is None else port), path.encode()

    def _target(self, scheme: str, name: str, port: int) -> Target:
        """Return a target that the policy allows.

        Raises:
            Refused: it allows none of this name and port.
        """
        host = host_of(name)
        if host is None:
            raise Refused(403, "Only host names can be reached, no IP addresses.")
        if host not in self._settings.hosts:
            raise Refused(403, f"The domain '{host}' is not in the 'allowed_domains' of this container.", host)
        if port not in self._settings.ports:
            raise Refused(403, f"The port {port} is not among those that containers may connect to.", host)
        placeholders, secrets = self._secrets.get(host, (None, _NO_SECRETS))
        return Target(scheme, host, port, placeholders, secrets)


@dataclass(frozen=True, slots=True)
class _Connector:
    """Connects to the targets of one connection of the container."""

    addresses: AddressPolicy
    trust: ssl.SSLContext
    traffic: Traffic
    deadline: Deadline

    async def connect(self, target: Target, *, tls: bool = True) -> Stream:
        """Connect to a target at an address that was checked.

        Args:
            tls: whether to begin TLS if the scheme has it.

        Raises:
            Refused: there is no allowed address, or none can be connected to.
        """
        host, error = target.host, "no address"
        try:
            addresses = await self.addresses.addresses(target.scheme, host, target.port)
        except UrlRefused as refused:
            raise Refused(403, str(refused), host) from refused
        context = self.trust if tls and target.scheme == "https" else None
        for address in addresses:
            try:
                reader, writer = await connected(address, target.port, context, host)
            except ssl.SSLCertVerificationError as failed:
                raise Refused(502, f"'{host}' has no valid certificate: {failed.verify_message}.", host) from failed
            except OSError as failed:
                error = failed.strerror or str(failed)
            else:
                return Stream(reader, writer, self.traffic, self.deadline)
        raise Refused(502, f"'{host}' cannot be connected to: {error}.", host)


@dataclass(slots=True)
class _Serving:
    """What a connection of the container does.

    Attributes:
        stream: its data.
        client: its requests and answers; those within TLS, if they are read.
        host: the host of the current request or tunnel, once it is known.
    """

    stream: Stream
    client: HttpStream
    connector: _Connector
    host: str = ""


async def _accept(client: HttpStream) -> None:
    await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))


async def _resolved(host: str, port: int) -> list[str]:
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise UrlRefused(f"The address of '{host}' was not found within {_LOOKUP_SECONDS:g} seconds.") from None
    return [str(address[0]) for *_, address in found]


def _server_context(pem: str) -> ssl.SSLContext:
    """Return the TLS context of a host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with os.fdopen(os.memfd_create("certificate"), "w") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")  # ssl reads certificates from files only
    context.set_alpn_protocols(["http/1.1"])
    return context


async def run(listener: socket.socket, settings: ProxySettings, report: Report, traffic: Traffic) -> None:
    """Serve the connections of a container until the server closes the standard input."""
    proxy, closed = Proxy(settings, report, traffic), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), closed.set)
    async with await asyncio.start_server(proxy.serve, sock=listener, backlog=_BACKLOG):
        await closed.wait()


def main(group: str, listener: int, settings: int, left: int) -> None:
    """Run the proxy. It prints the refused requests, one JSON array of host, status and reason a line.

    Args:
        group: the folder of the control group to join; empty for none.
        listener: the descriptor of the socket in the container that code connects to.
        settings: the descriptor of the `ProxySettings`.
        left: the descriptor of the memory with the bytes that the container may still send and receive.
    """

    def report(refused: Refused) -> None:
        line = json.dumps([refused.host, refused.status, str(refused)]).encode() + b"\n"
        with suppress(OSError):
            os.write(sys.stdout.fileno(), line)

    if group:
        Path(group, "cgroup.procs").write_text("0")
    os.set_blocking(sys.stdout.fileno(), False)
    read = ProxySettings.read(settings)
    os.nice(_NICENESS)  # the server has priority
    traffic = Traffic(read.traffic_bytes, shared_count(left))
    asyncio.run(run(socket.socket(fileno=listener), read, report, traffic))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
