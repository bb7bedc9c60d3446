"""The proxy of a container, attacked by the bytes that code in the container could send to it, and by hosts."""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.features.code.network.certificates import certificates_for
from llama_stack_responses.features.code.network.proxy import Proxy
from llama_stack_responses.features.code.network.proxy_settings import ProxySettings
from llama_stack_responses.features.code.network.proxy_streams import Traffic
from tests.support.certificates import Certificates
from tests.support.clock import LoopClock
from tests.support.sites import OK, RawClient, Site, raw_site, site
from tests.support.waiting import until

KEY: Final = "sk-1234567890-secret"
API: Final = "api.localhost"
OTHER: Final = "other.localhost"
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
TRAFFIC_BYTES: Final = 2**24


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create_in(tmp_path_factory.mktemp("certificates"), [API, OTHER], address=None)


@dataclass
class RunningProxy:
    """A proxy of this process.

    Attributes:
        inside: the TLS context of code that trusts what its container trusts.
        left: the bytes that may still be read.
        refused: the hosts and statuses of refused requests.
    """

    port: int
    inside: ssl.SSLContext
    left: list[int]
    refused: list[tuple[str, int]] = field(default_factory=list)

    @property
    def read_bytes(self) -> int:
        """The bytes that it has read from clients and hosts, of those that it may by default."""
        return TRAFFIC_BYTES - self.left[0]

    async def asks(self, data: bytes) -> bytes:
        async with RawClient.connected(self.port) as client:
            return await client.asks(data)


def trusted(certificates: Certificates) -> str:
    return Path(certificates.path("ca.pem")).read_text()


@asynccontextmanager
async def proxy(
    certificates: Certificates, *ports: int, secret: bool = False, **changed: Any
) -> AsyncIterator[RunningProxy]:
    """Run a proxy that reaches the two hosts at these ports. The secret KEY is of the host API."""
    trust = trusted(certificates)
    signed = certificates_for([API] if secret else [])
    settings: dict[str, Any] = {
        "hosts": [API, OTHER],
        "ports": ports,
        "secrets": {API: {"API_KEY": KEY}} if secret else {},
        "certificates": signed.of_hosts,
        "trust": trust,
        "networks": LOOPBACK,
        "nat64": [],
        "connections": 8,
        "traffic_bytes": TRAFFIC_BYTES,
        "idle_seconds": 30.0,
        "seconds": 1e6,
    }
    given = ProxySettings(**settings | changed)
    left = [given.traffic_bytes]
    running = RunningProxy(0, ssl.create_default_context(cadata=trust + (signed.authority if secret else "")), left)
    traffic = Traffic(given.traffic_bytes, left)
    served = Proxy(given, lambda refused: running.refused.append((refused.host, refused.status)), traffic)
    async with raw_site(served.serve) as proxied:
        running.port = proxied.port
        yield running


class Silent:
    """A host that reads and does not answer.

    Args:
        begin: what it reads to be asked.

    Attributes:
        asked: it has read that.
        left: its client has ended the connection.
    """

    def __init__(self, begin: bytes = b"\r\n\r\n") -> None:
        self._begin = begin
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(self._begin)
        self.asked.set()
        with suppress(OSError):
            await reader.read()
        self.left.set()
        writer.close()


def get(url: str, *headers: str, host: str | None = None) -> bytes:
    """Return a request with a whole URL."""
    given = host or url.split("/")[2]
    return "\r\n".join([f"GET {url} HTTP/1.1", f"host: {given}", "connection: close", *headers, "", ""]).encode()


def status(answer: bytes) -> int:
    assert answer, "there was no answer"
    return int(answer.split()[1])


# Names


async def test_request_for_an_allowed_host_is_forwarded(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(f"http://API.localhost.:{web.port}/a/b?c=d%20e", "x-mine: 1"))
    assert (status(answer), answer.endswith(b"ok")) == (200, True)
    [request] = web.requests
    assert request.startswith(b"GET /a/b?c=d%20e HTTP/1.1\r\nhost: api.localhost:")
    assert b"x-mine: 1" in request


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.com/", b"'example.com' is not in the 'allowed_domains'"),
        ("http://sub.api.localhost:PORT/", b"'sub.api.localhost' is not in the 'allowed_domains'"),
        ("http://localhost:PORT/", b"'localhost' is not in the 'allowed_domains'"),
        ("http://127.0.0.1:PORT/", b"no IP addresses"),
        ("http://2130706433:PORT/", b"no IP addresses"),
        ("http://0x7f.1:PORT/", b"no IP addresses"),
        ("http://[::1]:PORT/", b"no IP addresses"),
        ("http://[::ffff:127.0.0.1]:PORT/", b"no IP addresses"),
        ("http://api.localhost:22/", b"The port 22"),
        ("http://api.localhost/", b"The port 80"),
    ],
)
async def test_request_for_another_host_or_port_is_403(certificates: Certificates, url: str, says: bytes) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(url.replace("PORT", str(web.port))))
    assert (status(answer), web.connections) == (403, 0)
    assert says in answer
    assert [each for _, each in running.refused] == [403]


@pytest.mark.parametrize(
    "authority",
    [
        "127.0.0.1:PORT",
        "[::1]:PORT",
        "example.com:PORT",
        "api.localhost:22",
        "api.localhost:25",
        "api.localhost",
        ":PORT",
    ],
)
async def test_tunnel_to_another_host_or_port_is_403(certificates: Certificates, authority: str) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        authority = authority.replace("PORT", str(web.port))
        answer = await running.asks(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode())
    assert (status(answer), web.connections) == (403, 0)
    first, *_, last = answer.split(b"\r\n")
    assert len(first) > len(b"HTTP/1.1 403 ")
    assert b'proxy-status: container; error=http_request_denied; details="%b"' % last.strip() in answer


@pytest.mark.parametrize("host", ["example.com", "other.localhost", "127.0.0.1", "api.localhost:1"])
async def test_host_header_of_another_host_is_refused(certificates: Certificates, host: str) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(f"http://api.localhost:{web.port}/", host=host))
    assert (status(answer), web.connections) == (403, 0)


@pytest.mark.parametrize("networks", [(), ("10.0.0.0/8",)])
async def test_host_with_an_inner_address_is_refused(certificates: Certificates, networks: tuple[str, ...]) -> None:
    async with site() as web, proxy(certificates, web.port, networks=networks) as running:
        answer = await running.asks(get(f"http://api.localhost:{web.port}/"))
        tunnel = await running.asks(f"CONNECT api.localhost:{web.port} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    assert (status(answer), status(tunnel), web.connections) == (403, 403, 0)
    assert b"has no public address" in answer


async def test_name_that_resolves_to_an_inner_address_is_refused_each_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = iter(["203.0.114.9", "127.0.0.1", "169.254.169.254", "10.0.0.1"])
    connected: list[str] = []

    async def resolved(host: str, port: int) -> list[str]:
        return [next(addresses)]

    async def connect(address: str, *_: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("llama_stack_responses.features.code.network.proxy._resolved", resolved)
    monkeypatch.setattr("llama_stack_responses.features.code.network.proxy.connected", connect)
    async with proxy(certificates, 80, networks=(), hosts=["rebinding.example"]) as running:
        answers = [status(await running.asks(get("http://rebinding.example/"))) for _ in range(4)]
    # The address that was checked is the one that is connected to: it is looked up once for each request.
    assert (answers, connected) == ([502, 403, 403, 403], ["203.0.114.9"])


# Tunnels


async def test_tunnel_without_secrets_ends_at_the_host(certificates: Certificates) -> None:
    async with (
        site(context=certificates.of_server()) as web,
        proxy(certificates, web.port) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.tunnel(f"api.localhost:{web.port}", running.inside, API)
        answer = await client.asks(b"GET /x HTTP/1.1\r\nhost: api.localhost\r\nauthorization: $API_KEY\r\n\r\n")
    assert answer == OK
    assert b"authorization: $API_KEY" in web.requests[0]


@pytest.mark.parametrize("named", ["other.localhost", "example.com", None])
@pytest.mark.parametrize("secret", [False, True])
async def test_tunnel_whose_tls_names_another_host_is_refused_with_an_alert(
    certificates: Certificates, named: str | None, *, secret: bool
) -> None:
    async with (
        site(context=certificates.of_server()) as web,
        proxy(certificates, web.port, secret=secret) as running,
        RawClient.connected(running.port) as client,
    ):
        running.inside.check_hostname = False
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await client.tunnel(f"api.localhost:{web.port}", running.inside, named or "")
    assert (web.requests, running.refused) == ([], [(API, 403)])


@pytest.mark.relatives
@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize(
    ("hello", "answer"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 403 The tunnel to 'api.localhost' is for TLS only"),
        (
            b"GET / HTTP/1.1\r\nhost: api.localhost\r\n\r\n",
            b"HTTP/1.1 403 The tunnel to 'api.localhost' is for TLS only",
        ),
        (b"", b"HTTP/1.1 403 The tunnel to 'api.localhost' is for TLS only"),
        (b"\x16\x03\x01\x00\x05hello", b"\x15\x03"),
        (b"\x16\x03\x01", b"HTTP/1.1 403 The tunnel to 'api.localhost' is for TLS only"),
    ],
)
async def test_tunnel_without_tls_is_answered_and_sends_nothing_to_the_host(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, hello: bytes, answer: bytes, *, secret: bool
) -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    async with (
        raw_site(serve) as web,
        proxy(certificates, web.port, secret=secret) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.send(f"CONNECT api.localhost:{web.port} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        await client.head()
        clock, before = LoopClock(monkeypatch), running.read_bytes
        await client.send(hello)
        await until(lambda: running.read_bytes == before + len(hello))
        answering = asyncio.create_task(client.rest())
        await clock.passes_until(answering.done)
        assert (await answering).startswith(answer)
    assert (bytes(received), running.refused) == (b"", [(API, 403)])


async def test_client_that_does_not_trust_the_proxy_is_reported(certificates: Certificates) -> None:
    async with (
        site(context=certificates.of_server()) as web,
        proxy(certificates, web.port, secret=True) as running,
        RawClient.connected(running.port) as client,
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.tunnel(f"api.localhost:{web.port}", ssl.create_default_context(), API)
        await client.rest()
        await until(lambda: running.refused == [(API, 400)])


@pytest.mark.parametrize("secret", [False, True])
async def test_data_before_the_tunnel_is_open_is_refused(certificates: Certificates, *, secret: bool) -> None:
    async with site() as web, proxy(certificates, web.port, secret=secret) as running:
        begun = f"CONNECT api.localhost:{web.port} HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n".encode()
        assert (status(await running.asks(begun)), web.requests) == (400, [])


# Secrets


@asynccontextmanager
async def within_tls(
    certificates: Certificates, answer: Any = OK, **changed: Any
) -> AsyncIterator[tuple[Site, RunningProxy, RawClient]]:
    """Open a tunnel to the host with a secret, and TLS in it."""
    async with (
        site(answer, certificates.of_server()) as web,
        proxy(certificates, web.port, secret=True, **changed) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.tunnel(f"api.localhost:{web.port}", running.inside, API)
        yield web, running, client


def inner(web: Site, *headers: str, method: str = "GET", path: str = "/") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: api.localhost:{web.port}", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("authorization: Bearer $API_KEY", f"authorization: Bearer {KEY}"),
        ("x-api-key: ${API_KEY}", f"x-api-key: {KEY}"),
        (
            f"authorization: Basic {b64encode(b'me:$API_KEY').decode()}",
            f"authorization: Basic {b64encode(f'me:{KEY}'.encode()).decode()}",
        ),
        ("x-other: $API_KEYS $API_KEY_2 $OTHER", "x-other: $API_KEYS $API_KEY_2 $OTHER"),
        ("authorization: Basic ****", "authorization: Basic ****"),
    ],
)
async def test_placeholder_in_a_header_is_replaced_for_its_host(
    certificates: Certificates, sent: str, received: str
) -> None:
    async with within_tls(certificates) as (web, _, client):
        assert status(await client.asks(inner(web, sent))) == 200
    assert received.encode() in web.requests[0]


async def test_placeholder_in_path_and_body_stays(certificates: Certificates) -> None:
    async with within_tls(certificates) as (web, _, client):
        await client.asks(inner(web, "content-length: 8", method="POST", path="/$API_KEY") + b"$API_KEY")
    assert web.requests[0].startswith(b"POST /$API_KEY ")
    assert web.requests[0].endswith(b"\r\n\r\n$API_KEY")
    assert KEY.encode() not in web.requests[0]


async def test_placeholder_is_not_replaced_for_another_host(certificates: Certificates) -> None:
    async with (
        site(context=certificates.of_server()) as web,
        proxy(certificates, web.port, secret=True) as running,
        RawClient.connected(running.port) as client,
    ):
        plain = await running.asks(get(f"http://other.localhost:{web.port}/", "authorization: $API_KEY"))
        await client.tunnel(f"other.localhost:{web.port}", running.inside, OTHER)
        await client.asks(b"GET / HTTP/1.1\r\nhost: other.localhost\r\nauthorization: $API_KEY\r\n\r\n")
    assert status(plain) == 502  # it is sent, to a site that wants TLS
    assert [KEY.encode() in each for each in web.requests] == [False]


async def test_secret_is_not_sent_without_tls(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port, secret=True) as running:
        refused = await running.asks(get(f"http://api.localhost:{web.port}/", "authorization: Bearer $API_KEY"))
        assert (status(refused), web.connections) == (403, 0)
        assert b"Secrets of 'api.localhost' are sent by HTTPS only." in refused
        assert status(await running.asks(get(f"http://api.localhost:{web.port}/"))) == 200


@pytest.mark.parametrize(("name", "is_trusted"), [(API, False), (OTHER, True)])
async def test_secret_is_not_sent_to_a_host_without_a_valid_certificate(
    certificates: Certificates, tmp_path: Path, name: str, *, is_trusted: bool
) -> None:
    wrong = Certificates.create_in(tmp_path, [name], address=None)
    async with (
        site(context=wrong.of_server()) as web,
        proxy(wrong if is_trusted else certificates, web.port, secret=True) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.tunnel(f"api.localhost:{web.port}", running.inside, API)
        answer = await client.asks(inner(web, "authorization: Bearer $API_KEY"))
    assert (status(answer), web.requests) == (502, [])
    assert b"'api.localhost' has no valid certificate" in answer


def echo(request: bytes) -> bytes:
    """Answer with the head of the request in a header and in the body, in chunks of 7 bytes."""
    told = re.search(rb"authorization: ([^\r]*)", request)
    assert told
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(request[at : at + 7]), request[at : at + 7]) for at in range(0, len(request), 7)
    )
    head = b"HTTP/1.1 200 %b\r\nx-echo: %b\r\ntransfer-encoding: chunked\r\n\r\n" % (told[1], told[1])
    return head + chunks + b"0\r\n\r\n"


def dechunked(answer: bytes) -> bytes:
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer)


@pytest.mark.parametrize(
    ("credentials", "shown"),
    [
        ("Bearer $API_KEY", b"Bearer " + b"*" * len(KEY)),
        (f"Basic {b64encode(b'me:$API_KEY').decode()}", b"Basic bWU6" + b"*" * 27),
        # The code chooses what surrounds the secret: it cannot hide a part of another occurrence.
        ("Bearer QQQQQQQQ$API_KEY z", b"Bearer QQQQQQQQ" + b"*" * len(KEY) + b" z"),
        ("$API_KEY application/json", b"*" * len(KEY) + b" application/json"),
    ],
)
async def test_secret_that_a_host_returns_is_hidden(certificates: Certificates, credentials: str, shown: bytes) -> None:
    async with within_tls(certificates, echo) as (web, _, client):
        answer = await client.asks(inner(web, f"authorization: {credentials}", "x-guess: $API_KEY QQQQQQQQs"))
    [request] = web.requests
    assert status(answer) == 200
    assert KEY.encode() in request
    assert dechunked(answer).count(shown) == 3
    assert KEY.encode() not in dechunked(answer)


async def test_credentials_of_an_earlier_request_are_hidden(certificates: Certificates) -> None:
    requests: list[bytes] = []

    def previous(request: bytes) -> bytes:
        requests.append(request)
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(requests[0]), requests[0])

    async with within_tls(certificates, previous) as (web, running, client):
        await client.asks(inner(web, f"authorization: Basic {b64encode(b'x:$API_KEY').decode()}"))
        async with RawClient.connected(running.port) as later:
            await later.tunnel(f"api.localhost:{web.port}", running.inside, API)
            answer = await later.asks(inner(web))
    assert b64encode(f"x:{KEY}".encode()) in requests[0]
    assert b"authorization: Basic eD" + b"*" * 28 + b"==\r\n" in answer


async def test_pieces_of_an_answer_do_not_show_a_part_of_a_secret(certificates: Certificates) -> None:
    def reflected(request: bytes) -> bytes:
        text = request.partition(b"\r\n\r\n")[2]
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)

    async def received(text: str) -> list[int]:
        """Return the sizes of the pieces of the answer, as the code gets them."""
        async with within_tls(certificates, reflected) as (web, _, client):
            asked = inner(web, f"content-length: {len(text)}", method="POST") + text.encode()
            await client.send(asked)
            await client.head()
            answer = await client.rest()
        assert dechunked(answer).count(text.encode()) == 1
        return [int(each, 16) for each in re.findall(rb"(?:^|\r\n)([0-9a-f]+)\r\n", answer)]

    guesses = [f"{'~' * 100}{each}" for each in (KEY[:-1], KEY[:-2] + "?", "?" * (len(KEY) - 1))]
    sizes = [await received(each) for each in guesses]
    assert sizes == [sizes[0]] * 3


async def test_secrets_are_in_no_line_of_the_settings_or_of_errors(certificates: Certificates) -> None:
    settings = ProxySettings([API], [443], {API: {"API_KEY": KEY}}, {API: "PEM"}, "", [], [], 1, 1, 1.0, 1.0)
    assert KEY not in repr(settings)
    async with within_tls(certificates) as (_, running, client):
        refused = await client.asks(b"GET / HTTP/1.1\r\nhost: example.com\r\nauthorization: $API_KEY\r\n\r\n")
    assert (status(refused), running.refused) == (403, [(API, 403)])
    assert KEY.encode() not in refused


async def test_tunnel_that_is_read_refuses_other_targets(certificates: Certificates) -> None:
    for target in ("http://example.com/", "https://other.localhost/", "other.localhost:443"):
        async with within_tls(certificates) as (web, _, client):
            method = "CONNECT" if target.endswith("443") else "GET"
            assert status(await client.asks(inner(web, method=method, path=target))) == 400
            assert web.requests == []


async def test_trace_is_refused(certificates: Certificates) -> None:
    async with within_tls(certificates) as (web, _, client):
        assert status(await client.asks(inner(web, "authorization: $API_KEY", method="TRACE"))) == 400
        assert web.requests == []


async def test_redirect_is_the_clients_own(certificates: Certificates) -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    async with site(moved) as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(f"http://api.localhost:{web.port}/"))
        followed = await running.asks(get("http://169.254.169.254/"))
    assert (status(answer), b"location: http://169.254.169.254/" in answer, status(followed)) == (302, True, 403)


# Smuggling


@pytest.mark.parametrize(
    "headers",
    [
        ["content-length: 5", "transfer-encoding: chunked"],
        ["content-length: 5", "content-length: 6"],
        ["content-length: -1"],
        ["content-length: 5, 6"],
        ["transfer-encoding: chunked, identity"],
        ["transfer-encoding: xchunked"],
        ["transfer-encoding: chunked", "transfer-encoding: identity"],
        ["host: example.com"],
        ["x : y"],
        ["x\x00: y"],
        [" folded: y", "host"],
    ],
)
async def test_ambiguous_request_is_refused(certificates: Certificates, headers: list[str]) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        answer = await running.asks(
            get(f"http://api.localhost:{web.port}/", *headers) + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        )
    assert 400 <= status(answer) <= 501
    assert web.requests == []


async def test_connection_header_hides_no_framing(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        asked = get(
            f"http://api.localhost:{web.port}/", "connection: content-length, x-mine", "content-length: 2", "x-mine: 1"
        )
        assert status(await running.asks(asked + b"hi")) == 200
    assert web.requests[0].endswith(b"hi")
    assert b"content-length: 2\r\n" in web.requests[0]
    assert b"x-mine" not in web.requests[0]


async def test_pipelined_requests_are_checked_one_by_one(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        first = f"GET http://api.localhost:{web.port}/1 HTTP/1.1\r\nhost: api.localhost:{web.port}\r\n\r\n".encode()
        second = first.replace(b"/1 ", b"/2 ").replace(b"api.", b"other.")
        answer = await running.asks(first + second + get("http://example.com/"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"403"]
    assert [each.split()[1] for each in web.requests] == [b"/1", b"/2"]


async def test_chunked_body_and_expectation_are_forwarded(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port) as running, RawClient.connected(running.port) as client:
        lines = ["expect: 100-continue", "transfer-encoding: chunked"]
        await client.send(get(f"http://api.localhost:{web.port}/", *lines).replace(b"GET", b"POST"))
        assert (await client.head()).startswith(b"HTTP/1.1 100")
        assert status(await client.asks(b"3\r\nabc\r\n0\r\n\r\n")) == 200
    assert web.requests[0].endswith(b"3\r\nabc\r\n0\r\n\r\n")
    assert b"expect" not in web.requests[0]


@pytest.mark.parametrize("chunk", [b"zz\r\nabc\r\n", b"3\r\nabcdef\r\n0\r\n\r\n"])
async def test_wrong_chunk_is_the_fault_of_the_one_that_sent_it(certificates: Certificates, chunk: bytes) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        asked = get(f"http://api.localhost:{web.port}/", "transfer-encoding: chunked").replace(b"GET", b"POST")
        answer = await running.asks(asked + chunk)
    assert status(answer) == 400
    assert b"The body of the request is not valid HTTP/1.1." in answer
    assert running.refused == [("", 400)]


@pytest.mark.parametrize(
    "target", ["/", "ftp://api.localhost/", "https://api.localhost/", "http://u:p@api.localhost/", "http://", "*"]
)
async def test_request_without_a_whole_url_is_400(certificates: Certificates, target: str) -> None:
    async with proxy(certificates, 80) as running:
        asked = f"GET {target} HTTP/1.1\r\nhost: api.localhost\r\nconnection: close\r\n\r\n".encode()
        assert status(await running.asks(asked)) == 400


async def test_answer_that_is_no_http_is_502(certificates: Certificates) -> None:
    for wrong in (b"hello\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10**6 + b"\r\n\r\n"):
        async with site(wrong) as web, proxy(certificates, web.port) as running:
            assert status(await running.asks(get(f"http://api.localhost:{web.port}/"))) == 502


async def test_answer_that_breaks_off_does_not_look_whole(certificates: Certificates) -> None:
    broken = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal"
    async with site(broken) as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(f"http://api.localhost:{web.port}/"))
    assert answer.endswith(b"hal\r\n")


# Bounds


async def test_huge_headers_are_431(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        answer = await running.asks(get(f"http://api.localhost:{web.port}/", "x: " + "y" * 2**20))
    assert (status(answer), web.connections) == (431, 0)
    assert b"headers of the request are too large" in answer


async def test_placeholders_do_not_multiply_without_end(certificates: Certificates) -> None:
    async with within_tls(certificates, secrets={API: {"API_KEY": "x" * 16_000}}) as (web, _, client):
        assert status(await client.asks(inner(web, "x: " + "$API_KEY " * 1_000))) == 431
        assert web.requests == []


async def test_more_connections_than_allowed_are_503(certificates: Certificates) -> None:
    async with site() as web, proxy(certificates, web.port, connections=2) as running:
        asked = get(f"http://api.localhost:{web.port}/")
        async with RawClient.connected(running.port) as first, RawClient.connected(running.port) as second:
            await first.send(asked[:9])
            await second.send(asked[:9])
            assert status(await running.asks(asked)) == 503
            assert status(await first.asks(asked[9:])) == 200
        while status(await running.asks(asked)) != 200:  # until the proxy has noticed that a connection has ended
            pass


async def test_traffic_is_limited_in_all(certificates: Certificates) -> None:
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 600000\r\n\r\n" + bytes(600_000)
    async with site(large) as web, proxy(certificates, web.port, traffic_bytes=2**20) as running:
        asked = get(f"http://api.localhost:{web.port}/")
        first, second, third = [await running.asks(asked) for _ in range(3)]
    assert (len(first) > 600_000, len(second) < 600_000, status(third), web.connections) == (True, True, 403, 2)
    assert b"1 MiB, which the setting 'code_interpreter.network.traffic_mb' has" in third


async def test_silent_host_ends_the_connection_and_not_others(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent()
    async with raw_site(silent.serve) as slow, site() as web, proxy(certificates, slow.port, web.port) as running:
        clock = LoopClock(monkeypatch)
        waiting = asyncio.create_task(running.asks(get(f"http://api.localhost:{slow.port}/")))
        await silent.asked.wait()
        assert status(await running.asks(get(f"http://api.localhost:{web.port}/"))) == 200
        await clock.passes_until(waiting.done)
        answer = await waiting
        assert status(answer) == 504
        assert b"No data came for 30 seconds, the setting 'code_interpreter.network.idle_seconds'." in answer
        assert running.refused == [(API, 504)]
        await silent.left.wait()


async def test_silent_host_within_tls_is_504(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    async with (
        raw_site(silent.serve, certificates.of_server()) as web,
        proxy(certificates, web.port, secret=True) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.tunnel(f"api.localhost:{web.port}", running.inside, API)
        clock = LoopClock(monkeypatch)
        waiting = asyncio.create_task(client.asks(inner(web)))
        await silent.asked.wait()
        await clock.passes_until(waiting.done)
        assert status(await waiting) == 504
    assert running.refused == [(API, 504)]


async def test_request_that_does_not_end_is_408(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as web, proxy(certificates, web.port) as running:
        clock = LoopClock(monkeypatch)
        head = get(f"http://api.localhost:{web.port}/")[:20]
        body = get(f"http://api.localhost:{web.port}/", "content-length: 3")
        waiting = [asyncio.create_task(running.asks(each)) for each in (head, body)]
        await until(lambda: running.read_bytes == len(head + body))
        await clock.passes_until(lambda: all(each.done() for each in waiting))
        assert [status(await each) for each in waiting] == [408, 408]
    assert sorted(running.refused) == [("", 408), (API, 408)]


async def test_idle_connection_without_a_request_ends_silently(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        site() as web,
        proxy(certificates, web.port) as running,
        RawClient.connected(running.port) as unused,
        RawClient.connected(running.port) as kept,
    ):
        await kept.send(get(f"http://api.localhost:{web.port}/").replace(b"connection: close\r\n", b""))
        assert status(await kept.head()) == 200
        assert await kept.exactly(2) == b"ok"
        clock = LoopClock(monkeypatch)
        waiting = [asyncio.create_task(each.rest()) for each in (unused, kept)]
        await clock.passes_until(lambda: all(each.done() for each in waiting))
        assert [await each for each in waiting] == [b"", b""]
    assert running.refused == []


async def test_tunnel_that_ends_with_its_time_is_reported(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent(b"\x16")  # the first byte of a TLS handshake
    async with (
        raw_site(silent.serve) as web,
        proxy(certificates, web.port) as running,
        RawClient.connected(running.port) as client,
    ):
        clock = LoopClock(monkeypatch)
        waiting = asyncio.create_task(client.tunnel(f"api.localhost:{web.port}", running.inside, API))
        await silent.asked.wait()
        await clock.passes_until(waiting.done)
        with pytest.raises((ssl.SSLError, OSError)):
            await waiting
    assert running.refused == [(API, 504)]


async def test_endless_answer_ends_with_the_time_of_its_connection(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    async with (
        raw_site(endless) as web,
        proxy(certificates, web.port, idle_seconds=1e6, seconds=60.0) as running,
        RawClient.connected(running.port) as client,
    ):
        await client.send(get(f"http://api.localhost:{web.port}/"))
        assert status(await client.head()) == 200
        clock = LoopClock(monkeypatch)
        waiting = asyncio.create_task(client.rest())
        await clock.passes_until(waiting.done)
    assert running.refused == [(API, 504)]


async def test_host_is_disconnected_when_the_client_is_gone(certificates: Certificates) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        begun.set()
        while not gone.is_set():
            writer.write(bytes(2**16))
            try:
                await writer.drain()
            except OSError:
                gone.set()

    async with raw_site(waits) as web, proxy(certificates, web.port) as running:
        async with RawClient.connected(running.port) as client:
            await client.send(get(f"http://api.localhost:{web.port}/"))
            await begun.wait()
        await until(gone.is_set)
