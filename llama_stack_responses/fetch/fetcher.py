"""Fetches URLs with limits on size, time and redirects."""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import httpx

from ..concurrency.fair_yield import FairYield
from ..concurrency.offloading import in_thread
from .address_policy import AddressPolicy, UrlRefused
from .slices import receive_in_slices
from .transport import SOCKET_OPTIONS, GuardedTransport

_HEADERS: Final = {
    "user-agent": "llama-stack-responses",
    "accept": "text/html, text/plain;q=0.9, */*;q=0.5",
    # The only encoding offered: its output can be limited during decompression.
    "accept-encoding": "gzip",
}
_LENGTH: Final = re.compile("[0-9]{1,18}")

CONNECTION_BYTES: Final = 512 * 1024
"""Bytes that an open connection holds in addition to the body: buffers, and data not yet read."""

_GZIP_OR_ZLIB: Final = 47
"""`wbits` of zlib that detects gzip and zlib by their first bytes."""
_CHARSET: Final = re.compile(r';[ \t]*charset=[ \t]*"?([^\s;",]{1,100})', re.IGNORECASE)
_CONTENT_TYPE_CHARACTERS: Final = 1_000
"""Characters of the header that are parsed."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch.

    Attributes:
        size: maximum bytes of the body, decompressed.
        seconds: time limit, including redirects.
        redirects: maximum redirects that are followed.
    """

    size: int
    seconds: float
    redirects: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched body.

    Attributes:
        url: its URL, after the redirects.
        media_type: without parameters, in lower case; empty if the server did not send it.
        charset: of a text, if the server sent it.
    """

    url: str
    media_type: str
    charset: str | None
    body: bytes


def guarded_client(
    address_policy: AddressPolicy, trust: ssl.SSLContext, fair_yield: FairYield, headers: Mapping[str, str]
) -> httpx.AsyncClient:
    """Return a client that connects only to addresses that the policy allows.

    It has no time limit and follows no redirect: the caller limits what it does with it.

    Args:
        trust: the trusted certificates.
        fair_yield: selects the connection that parses next.
        headers: headers of every request.
    """

    def plain() -> Any:
        inner = httpx.AsyncHTTPTransport(verify=trust, socket_options=SOCKET_OPTIONS)
        return receive_in_slices(inner, fair_yield)

    transport: httpx.AsyncBaseTransport = GuardedTransport(address_policy, plain)  # type: ignore[assignment]
    return httpx.AsyncClient(
        transport=transport,
        headers=headers,
        timeout=None,  # noqa: S113 (the caller limits the time)
        trust_env=False,
    )


class Fetcher:
    """Fetches URLs that users and models name.

    Args:
        address_policy: which addresses may be connected to.
        limits: limits of one fetch.
        trust: the trusted certificates; None: those of httpx, or SSL_CERT_FILE.
    """

    def __init__(self, address_policy: AddressPolicy, limits: FetchLimits, trust: ssl.SSLContext | None = None) -> None:
        self._address_policy = address_policy
        self._limits = limits
        self._trust = trust
        self._fair_yield = FairYield()

    async def get(self, url: str, count: Callable[[int], object]) -> Fetched:
        """Fetch the whole body of a URL.

        Args:
            count: called with the announced size, and with the size of each piece of the body beyond that before the
                piece is kept; an exception from it ends the fetch.

        Raises:
            UrlRefused: the URL may not be fetched, or the fetch failed; the message gives the reason.
        """
        try:
            async with asyncio.timeout(self._limits.seconds), self._client() as client:
                return await self._read(client, url, count)
        except TimeoutError:
            raise UrlRefused(f"The server did not answer within {self._limits.seconds:g} seconds.") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError):
            # UnicodeError: a host that is not a valid IDNA domain name (RFC 5891), or a lone surrogate.
            raise UrlRefused(
                "This is not a URL that can be fetched: it must begin with http:// or https:// and a host."
            ) from None
        except httpx.HTTPError as error:
            raise UrlRefused(f"It could not be fetched ({type(error).__name__}).") from None

    def _client(self) -> httpx.AsyncClient:
        # Created once: it parses some hundred certificates.
        trust = self._trust = self._trust or httpx.create_ssl_context()
        return guarded_client(self._address_policy, trust, self._fair_yield, _HEADERS)

    async def _read(self, client: httpx.AsyncClient, url: str, count: Callable[[int], object]) -> Fetched:
        async with self._answer(client, url) as response:
            if not response.is_success:
                raise UrlRefused(f"The server answered {response.status_code} {response.reason_phrase}".rstrip() + ".")
            body = await self._body(response, count)
            # Not `response.encoding`: httpx uses the email package's parser, which takes quadratic time.
            content_type = response.headers.get("content-type", "")[:_CONTENT_TYPE_CHARACTERS]
            charset = _CHARSET.search(content_type)
            media_type = content_type.partition(";")[0].strip().lower()
            return Fetched(str(response.url), media_type, charset and charset[1], body)

    @asynccontextmanager
    async def _answer(self, client: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
        """Yield the answer after all redirects. The bodies of redirects are not read: httpx does not limit them."""
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
        raise UrlRefused(f"The URL redirects more than {self._limits.redirects} times.")

    def _announced(self, response: httpx.Response) -> int:
        """Return the size of the body from `content-length`; 0 if there is none.

        Raises:
            UrlRefused: it is larger than the limit.
        """
        length = response.headers.get("content-length", "")
        size = int(length) if _LENGTH.fullmatch(length) else 0
        if size > self._limits.size:
            raise UrlRefused(f"It is larger than {self._limits.size} bytes.")
        return size

    async def _body(self, response: httpx.Response, count: Callable[[int], object]) -> bytes:
        inflate = _inflater(response.headers.get("content-encoding", ""))
        # Unlike a bytearray, BytesIO returns its content without a copy. Closing it frees the content even if the
        # traceback of an exception refers to this frame.
        counted = self._announced(response) if inflate is None else 0
        count(counted)
        with BytesIO() as body:
            async for chunk in response.aiter_raw(65_536):
                left = self._limits.size - body.tell()
                try:
                    # In a thread: a few kilobytes may expand to megabytes, which would block the event loop.
                    piece = await in_thread(inflate.decompress, chunk, left + 1) if inflate else chunk
                except zlib.error:
                    raise UrlRefused("The server sent compressed data that cannot be decompressed.") from None
                if len(piece) > left:
                    raise UrlRefused(f"It is larger than {self._limits.size} bytes.")
                if body.tell() + len(piece) > counted:
                    count(len(piece))
                    counted += len(piece)
                body.write(piece)
            return body.getvalue()


def _inflater(encoding: str) -> zlib._Decompress | None:
    """Return a decompressor with bounded output for a content encoding, or None if there is none.

    Raises:
        UrlRefused: the encoding was not offered.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise UrlRefused("The server used a compression that was not requested.")
