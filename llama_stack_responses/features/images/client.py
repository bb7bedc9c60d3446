"""The client of a server with OpenAI's API for images: `/images/generations` and `/images/edits`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, Literal

import httpx

from ...concurrency.fair_budget import FairBudget, QueueFull
from ...core.media_formats import image_format
from ...core.types import Json
from ...fetch.response_bodies import UNCOMPRESSED
from ...logs import get_logger
from .answers import AnswerReader, Hold, ShowPartial
from .failure import ImageFailed
from .served_image import ImageCall, ServedImage

logger = get_logger(__name__)

ResponseFormat = Literal["auto", "b64_json", "none"]

_ALWAYS_BASE64: Final = ("gpt-image", "chatgpt-image")
"""The beginnings of the names of models that always answer in base64, and refuse the field `response_format`."""


@dataclass(frozen=True, slots=True)
class ImageServerLimits:
    """Limits of the calls.

    Attributes:
        seconds: time limit of one call, without the time in the queue.
        image_bytes: maximum size of an image.
        concurrency: concurrent calls.
        concurrency_per_user: concurrent calls of one authenticated user. Without authentication there is one user,
            which may use all.
        waiting_per_user: further calls of one user that may wait.
    """

    seconds: float = 180.0
    image_bytes: int = 20 * 2**20
    concurrency: int = 4
    concurrency_per_user: int = 2
    waiting_per_user: int = 32


class ImageServer:
    """An image server. Users take turns.

    Args:
        url: its address, up to `/v1`.
        api_key: its API key, if it needs one.
        response_format: whether calls have the field `response_format`; with `auto`, it depends on the model's name.
        limits: limits of the calls.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        response_format: ResponseFormat = "auto",
        limits: ImageServerLimits | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = UNCOMPRESSED | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._response_format = response_format
        self.limits = limits = limits or ImageServerLimits()
        self._queue = FairBudget(limits.concurrency, limits.concurrency_per_user, limits.waiting_per_user)
        self._client: httpx.AsyncClient | None = None

    async def call(self, call: ImageCall, hold: Hold, show: ShowPartial) -> ServedImage:
        """Generate or edit an image.

        Args:
            hold: counts the answer while it is read.
            show: gets unfinished images.

        Raises:
            ImageFailed: the server made no image.
            ApiError: from `hold`.
        """
        async with self._turn():
            try:
                async with asyncio.timeout(self.limits.seconds):
                    return await self._answer(call, hold, show)
            except TimeoutError:
                message = f"The image server did not answer within {self.limits.seconds:g} seconds."
                failure = ImageFailed(message, "timeout")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                name = type(error).__name__
                failure = ImageFailed(f"The image server could not be reached, or broke off ({name}).", name)
            except ImageFailed as error:
                failure = error
            if failure.reason:
                logger.warning("the image server failed: %s", failure.reason)
            raise failure

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client:
            await client.aclose()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            share = await self._queue.enter()
        except QueueFull:
            message = "Too many images of this user wait to be generated. Try again later."
            raise ImageFailed(message, None) from None
        try:
            yield
        finally:
            self._queue.leave(share)

    async def _answer(self, call: ImageCall, hold: Hold, show: ShowPartial) -> ServedImage:
        fields = self._fields(call)
        if call.images:
            path, sent = "edits", _form(fields, call)
        else:
            path, sent = "generations", {"json": fields}
        async with self._http().stream("POST", f"{self._url}/images/{path}", **sent) as answer:
            reader = AnswerReader(answer, self.limits.image_bytes, hold)
            if not answer.is_success:
                raise await reader.refusal()
            return await reader.image(call.partial_images, show)

    def _fields(self, call: ImageCall) -> Json:
        """Return the fields of a request: only those that are needed, since servers refuse what they do not know."""
        fields: Json = {"prompt": call.prompt, **call.options}
        if call.model:
            fields["model"] = call.model
        if self._asks_for_base64(call.model or ""):
            fields["response_format"] = "b64_json"
        if call.partial_images:
            fields |= {"stream": True, "partial_images": call.partial_images}
        return fields

    def _asks_for_base64(self, model: str) -> bool:
        if self._response_format == "auto":
            return not model.rpartition("/")[2].startswith(_ALWAYS_BASE64)
        return self._response_format == "b64_json"

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            # `call` limits the whole call.
            self._client = httpx.AsyncClient(headers=self._headers, timeout=None)  # noqa: S113
        return self._client


def _form(fields: Json, call: ImageCall) -> dict[str, Any]:
    """Return the form of a request to edit images, which is sent in small pieces."""
    # OpenAI's clients send several images as `image[]`. Some servers know only `image` for a single one.
    name = "image" if len(call.images) == 1 else "image[]"
    files = [(name, _file(f"image-{number}", image)) for number, image in enumerate(call.images, 1)]
    if call.mask is not None:
        files.append(("mask", _file("mask", call.mask)))
    return {"data": {key: _form_value(value) for key, value in fields.items()}, "files": files}


def _file(name: str, content: bytes) -> tuple[str, BytesIO, str]:
    image = image_format(content) or "png"
    return f"{name}.{image}", BytesIO(content), f"image/{image}"


def _form_value(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
