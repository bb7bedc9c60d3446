"""Reads what a URL names, within bounds."""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

from .address_policy import Guard, Refused
from .transport import GuardedTransport

_HEADERS: Final = {
    "user-agent": "llama-stack-responses",
    "accept": "text/html, text/plain;q=0.9, */*;q=0.5",
    # The one encoding whose output can be bounded while it is read.
    "accept-encoding": "gzip",
}
_GZIP_OR_ZLIB: Final = 47
"""zlib's `wbits` for both, told apart by their first bytes."""
_CHARSET: Final = re.compile(r';[ \t]*charset=[ \t]*"?([^\s;",]{1,100})', re.IGNORECASE)
_CONTENT_TYPE: Final = 1_000
"""Characters of the header that are read."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds on what one URL may cost.

    Attributes:
        size: bytes of its body, decompressed.
        seconds: for all of it, redirects included.
        redirects: how many are followed.
    """

    size: int
    seconds: float
    redirects: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was read.

    Attributes:
        url: where it was found, after the redirects.
        media_type: without parameters, in lower case; empty if the server did not say.
        charset: of a text, if the server said.
    """

    url: str
    media_type: str
    charset: str | None
    body: bytes


class Fetcher:
    """Fetches what users and models name.

    Args:
        guard: says where it may go.
        limits: say how much it may read.
        trust: the certificates that it trusts; None: those that httpx does, or SSL_CERT_FILE.
    """

    def __init__(self, guard: Guard, limits: FetchLimits, trust: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._limits = limits
        self._trust = trust

    async def get(self, url: str) -> Fetched:
        """Reads the whole of what a URL names.

        Raises:
            Refused: it may not be fetched, or could not be; the message says why.
        """
        try:
            async with asyncio.timeout(self._limits.seconds), self._client() as client:
                return await self._read(client, url)
        except TimeoutError:
            raise Refused(f"The server did not answer within {self._limits.seconds:g} seconds.") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError):
            # UnicodeError: a host that is no domain name in IDNA (RFC 5891), or a lone surrogate.
            raise Refused("This is no URL to fetch: it must begin with http:// or https:// and a host.") from None
        except httpx.HTTPError as error:
            raise Refused(f"It could not be fetched ({type(error).__name__}).") from None

    def _client(self) -> httpx.AsyncClient:
        # Once a server: it reads some hundred certificates.
        trust = self._trust = self._trust or httpx.create_ssl_context()

        def plain() -> httpx.AsyncHTTPTransport:
            return httpx.AsyncHTTPTransport(verify=trust)

        transport: httpx.AsyncBaseTransport = GuardedTransport(self._guard, plain)  # type: ignore[assignment]
        return httpx.AsyncClient(
            transport=transport,
            headers=_HEADERS,
            timeout=None,  # noqa: S113 (the bound is on all of it)
            trust_env=False,
        )

    async def _read(self, client: httpx.AsyncClient, url: str) -> Fetched:
        async with self._answer(client, url) as response:
            if not response.is_success:
                raise Refused(f"The server answered {response.status_code} {response.reason_phrase}".rstrip() + ".")
            body = await self._body(response)
            # The parser of the email package, which httpx asks for the charset, takes quadratic time.
            content_type = response.headers.get("content-type", "")[:_CONTENT_TYPE]
            charset = _CHARSET.search(content_type)
            media_type = content_type.partition(";")[0].strip().lower()
            return Fetched(str(response.url), media_type, charset and charset[1], body)

    @asynccontextmanager
    async def _answer(self, client: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
        """The answer behind all redirects. The bodies of redirects are not read: httpx reads them without a bound."""
        request = client.build_request("GET", url)
        for _ in range(self._limits.redirects + 1):
            response = await client.send(request, stream=True)
            try:
                if response.next_request is None:
                    yield response
                    return
                request = response.next_request
            finally:
                await response.aclose()
        raise Refused(f"The URL redirects more than {self._limits.redirects} times.")

    async def _body(self, response: httpx.Response) -> bytes:
        inflate = _inflater(response.headers.get("content-encoding", ""))
        body = bytearray()
        async for chunk in response.aiter_raw(65_536):
            left = self._limits.size - len(body)
            try:
                # A few kilobytes may become megabytes, which takes longer than others shall wait.
                body += await asyncio.to_thread(inflate.decompress, chunk, left + 1) if inflate else chunk
            except zlib.error:
                raise Refused("The server sent something compressed that cannot be read.") from None
            if len(body) > self._limits.size:
                raise Refused(f"It is larger than {self._limits.size} bytes.")
        return bytes(body)


def _inflater(encoding: str) -> zlib._Decompress | None:
    """What undoes a content encoding, in bounded steps."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise Refused("The server compressed it in a way that was not asked for.")
