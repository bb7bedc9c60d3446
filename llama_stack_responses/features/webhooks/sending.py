"""Posts messages to servers of users, through the guard of all fetches."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

import httpx

from ...concurrency.fair_yield import FairYield
from ...fetch.address_policy import AddressPolicy, UrlRefused
from ...fetch.fetcher import guarded_client
from ...fetch.response_bodies import UNCOMPRESSED

_ANSWER_BYTES: Final = 1_000
"""Bytes of an answer that are read."""
_ANSWER_SECONDS: Final = 1.0
"""Time for which an answer is read once its status is known."""

_HEADERS: Final = {"content-type": "application/json", "user-agent": "llama-stack-responses", **UNCOMPRESSED}


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        status: None if there was no answer.
        text: the beginning of the answer, or why there was none.
    """

    status: int | None
    text: str

    @property
    def accepted(self) -> bool:
        """Whether the server has the message."""
        return self.status is not None and 200 <= self.status < 300


class Sender:
    """Posts messages.

    Args:
        address_policy: which addresses may be connected to.
        seconds: time limit of one post.
    """

    def __init__(self, address_policy: AddressPolicy, seconds: float) -> None:
        self._address_policy, self._seconds = address_policy, seconds
        self._fair_yield = FairYield()
        self._trust: ssl.SSLContext | None = None

    async def post(self, url: str, headers: Mapping[str, str], message: bytes) -> Answer:
        """Post a message. Redirects are not followed: a receiver is who the user named.

        The status decides once it is known, whatever becomes of the rest of the answer.
        """
        # Created once: it parses some hundred certificates.
        trust = self._trust = self._trust or httpx.create_ssl_context()
        status, body = None, bytearray()
        try:
            async with (
                asyncio.timeout(self._seconds) as limit,
                guarded_client(self._address_policy, trust, self._fair_yield, _HEADERS) as client,
                client.stream("POST", url, headers=dict(headers), content=message) as response,
            ):
                status = response.status_code
                limit.reschedule(asyncio.get_running_loop().time() + _ANSWER_SECONDS)
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) >= _ANSWER_BYTES:
                        break
        except (TimeoutError, UrlRefused, httpx.InvalidURL, httpx.HTTPError, UnicodeError) as error:
            if status is None:
                return Answer(None, self._reason(error))
        return Answer(status, body[:_ANSWER_BYTES].decode(errors="replace"))

    def _reason(self, error: Exception) -> str:
        """Return why there was no answer."""
        if isinstance(error, TimeoutError):
            return f"The server did not answer within {self._seconds:g} seconds."
        if isinstance(error, UrlRefused):
            return str(error)
        if isinstance(error, httpx.HTTPError):
            return f"The server could not be reached ({type(error).__name__})."
        return "This is not a URL that can be connected to."
