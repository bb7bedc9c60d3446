"""Moderation by a server with OpenAI's `/moderations` API."""

from __future__ import annotations

from typing import Final

import httpx

from ...core.errors import ApiError, bad_request
from ...core.moderation_results import Kind, Side, result
from ...core.types import Json
from ...fetch.response_bodies import UNCOMPRESSED, decoded, read_body

_AWAY: Final = "The moderation server cannot be reached ({}), so the check did not finish. Try again later."
_MAX_BYTES: Final = 1 << 16
"""Maximum bytes of an answer."""
_UNREADABLE: Final = "The moderation server's answer is not in the form of OpenAI's /moderations."


class Endpoint:
    """Client of such a server; the name of a guardrail is the name of a model there.

    Args:
        url: its address, up to `/v1`.
        api_key: its API key, if it needs one.
        model: the model for requests that name none; None leaves it to the server.
        seconds: timeout for connecting and between two reads.
    """

    def __init__(
        self, url: str, api_key: str | None = None, model: str | None = None, *, seconds: float = 30.0
    ) -> None:
        self._url = f"{url.rstrip('/')}/moderations"
        self._headers = UNCOMPRESSED | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._model = model
        self._seconds = seconds
        self._client: httpx.AsyncClient | None = None

    async def check(self, kind: Kind, name: str | None, text: str, _side: Side) -> Json:
        """Return the server's result for a text."""
        model = name or self._model
        body = {"input": text} | ({"model": model} if model else {})
        try:
            async with self._http().stream("POST", self._url, json=body) as answer:
                _check_status(answer, kind, model)
                return _read(await decoded(await read_body(answer, _MAX_BYTES)), model)
        except httpx.HTTPError as error:
            raise ApiError(502, _AWAY.format(type(error).__name__)) from error
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ApiError(502, _UNREADABLE) from error

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client:
            await client.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(headers=self._headers, timeout=self._seconds)
        return self._client


def _check_status(answer: httpx.Response, kind: Kind, model: str | None) -> None:
    if answer.status_code in (400, 404, 422):
        message = f"The moderation server refused to check with '{model}' ({answer.status_code})."
        raise bad_request(message, "moderation.model" if kind == "moderation" else kind)
    if not answer.is_success:
        raise ApiError(502, _AWAY.format(f"status {answer.status_code}"))


def _read(body: Json, model: str | None) -> Json:
    first = body["results"][0]
    if not isinstance(first["flagged"], bool):
        raise TypeError("flagged")
    categories = [name for name, is_flagged in (first.get("categories") or {}).items() if is_flagged]
    scores = {name: float(score) for name, score in (first.get("category_scores") or {}).items()}
    return result(str(body.get("model") or model or "default"), scores, first["flagged"], categories)
