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

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post a message. Redirects are not followed: a receiver is who the user named."""
        # Created once: it parses some hundred certificates.
        trust = self._trust = self._trust or httpx.create_ssl_context()
        try:
            async with (
                asyncio.timeout(self._seconds),
                guarded_client(self._address_policy, trust, self._fair_yield, _HEADERS) as client,
                client.stream("POST", url, headers=dict(headers), content=body) as response,
            ):
                return Answer(response.status_code, await _beginning(response))
        except TimeoutError:
            return Answer(None, f"The server did not answer within {self._seconds:g} seconds.")
        except UrlRefused as error:
            return Answer(None, str(error))
        except (httpx.InvalidURL, UnicodeError):
            return Answer(None, "This is not a URL that can be connected to.")
        except httpx.HTTPError as error:
            return Answer(None, f"The server could not be reached ({type(error).__name__}).")


async def _beginning(response: httpx.Response) -> str:
    body = b""
    async for piece in response.aiter_raw(_ANSWER_BYTES):
        body += piece
        if len(body) >= _ANSWER_BYTES:
            break
    return body[:_ANSWER_BYTES].decode(errors="replace")
