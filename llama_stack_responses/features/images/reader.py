"""Reads the images of a conversation as bytes, for tools that edit them."""

from __future__ import annotations

from collections.abc import Callable

from ...concurrency.large_base64 import decoded, decoded_bytes
from ...core.base64_pieces import data_start
from ...core.types import Json
from ...fetch.fetcher import CONNECTION_BYTES, Fetcher
from ...inputs.files import Count, Files


class ImageReader:
    """Reads images.

    Args:
        files: the stored files.
        fetcher: fetches URLs.
        max_bytes: maximum size of an image.
    """

    def __init__(self, files: Files, fetcher: Fetcher, max_bytes: int) -> None:
        self._files = files
        self._fetcher = fetcher
        self._max_bytes = max_bytes

    async def read(self, image: Json, hold: Callable[[int], object]) -> bytes:
        """Return an image: a part of a message, or the item of a call that generated it.

        Args:
            hold: called with the number of bytes before they are held; it may raise.

        Raises:
            ApiError: the file does not exist or belongs to another user.
            UrlRefused: the URL cannot be fetched.
            ValueError: the image is too large, or its data is not base64; the message is a sentence.
        """
        count = self._counting(hold)
        url = image.get("image_url") or ""
        if file_id := image.get("file_id"):
            return (await self._files.read(file_id, count)).content
        if url.lower().startswith(("http://", "https://")):
            hold(CONNECTION_BYTES)
            return (await self._fetcher.get(url, count)).body
        data = image.get("result") or url
        start = data_start(data)
        count(decoded_bytes(data, start))
        try:
            return await decoded(data, start)
        except ValueError:
            raise ValueError("its data is not valid base64.") from None

    def _counting(self, hold: Callable[[int], object]) -> Count:
        size = 0

        def count(more: int) -> None:
            nonlocal size
            size += more
            if size > self._max_bytes:
                raise ValueError(f"it has more than {self._max_bytes} bytes.")
            hold(more)

        return count
