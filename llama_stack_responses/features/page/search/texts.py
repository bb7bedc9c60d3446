"""Loads the texts of stored responses, for the index and for what is shown of a response that was found."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import batched
from typing import Final

from ....concurrency.offloading import in_thread_if_large
from ....core.types import Json
from ....logs import get_logger
from ....store.codec import UnreadableError
from ....store.decoder import Decoder
from ....store.loaded_response import StoredResponse
from ....store.read_allowance import PAGE_BYTES
from ....store.records import Records
from ....store.response_loader import ResponseLoader
from ....store.retention import Retention
from .document_text import text_of

logger = get_logger(__name__)

_LOADED: Final = 16
"""Responses that are loaded together."""


class Texts:
    """Loads texts.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._loader = ResponseLoader(records, Decoder(), Retention(None, time.time), PAGE_BYTES)

    async def of(self, ids: Sequence[str], max_bytes: int | None = None) -> dict[str, str]:
        """Return the texts of the responses with these ids that exist, by id; those that cannot be read are left out.

        Args:
            max_bytes: bytes of responses after which no more are read; None reads all.
        """
        texts, read = dict[str, str](), 0
        for some in batched(ids, _LOADED):
            async for stored, own in self._readable(some):
                find = partial(safe_text_of, stored.response, own)
                texts[stored.response["id"]] = await in_thread_if_large(find, stored.response, own)
                read += stored.size
                if max_bytes is not None and read >= max_bytes:
                    return texts
        return texts

    async def _readable(self, ids: Sequence[str]) -> AsyncIterator[tuple[StoredResponse, list[Json]]]:
        """Yield what `ResponseLoader.with_inputs` does, without what is damaged or missing; some of it twice then."""
        try:
            async for found in self._loader.with_inputs(ids):
                yield found
        except UnreadableError:
            for each in ids if len(ids) > 1 else ():
                async for found in self._readable([each]):
                    yield found


def safe_text_of(response: Json, inputs: Sequence[Json]) -> str:
    """Return what `text_of` returns, and an empty text if it fails, so that other responses are indexed."""
    try:
        return text_of(response, inputs)
    except Exception:
        logger.exception("could not read the text of a response for the search: %s", response["id"])
        return ""
