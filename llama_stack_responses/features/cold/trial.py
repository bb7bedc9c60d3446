"""Tries a bucket or a folder with a small object, and says what an operator does if it cannot be used."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from ...commands.command_error import CommandError
from .objects import open_place
from .settings import ColdTier

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SECONDS: Final = 30
"""Longest time of one step."""
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_OS_REASON: Final = re.compile(r"([A-Z][A-Za-z -]{1,60}) \(os error \d+\)")
_METADATA: Final = re.compile(r"/latest/(api/token|meta-data/)")
"""Paths of the server that has the credentials of a machine in a cloud. It is asked last."""
_NOT_SENT: Final = "error sending request"


async def try_place(settings: ColdTier) -> None:
    """Write, read, list and delete an object, which has a name that nothing else has.

    Raises:
        CommandError: one of these fails; the message says what to do.
    """
    name, data = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    async with _said(settings, "write"):
        store = open_place(settings)
        await obstore.put_async(store, name, data)
    try:
        async with _said(settings, "read"):
            if bytes(await obstore.get_range_async(store, name, start=0, length=len(data))) != data:
                raise CommandError(f"{settings.url} of 'archive' returns other bytes than were written: use another.")
        async with _said(settings, "list"):
            # The name is no folder: only the permission is of interest, and there may be any number of objects.
            await anext(obstore.list(store, f"{name}.none").__aiter__(), None)
    except CommandError:
        await _delete_if_possible(store, name)
        raise
    async with _said(settings, "delete"):
        await obstore.delete_async(store, name)


async def _delete_if_possible(store: ObjectStore, name: str) -> None:
    with suppress(BaseError, OSError):
        async with asyncio.timeout(_SECONDS):
            await obstore.delete_async(store, name)


@asynccontextmanager
async def _said(settings: ColdTier, step: str) -> AsyncIterator[None]:
    """Say why a step has failed. The library's own message may name keys."""
    try:
        async with asyncio.timeout(_SECONDS):
            yield
    except (BaseError, ValueError, OSError) as error:
        explain = _of_folder if settings.url.startswith("file:") else _of_bucket
        raise CommandError(explain(settings, step, error)) from error


def _of_folder(settings: ColdTier, step: str, error: Exception) -> str:
    found = _OS_REASON.search(str(error))
    reason = f" ({found.group(1)})" if found else ""
    return (
        f"The server cannot {step} files in {settings.url} of 'archive'{reason}: create the folder, mount it on all "
        f"servers, and let the user that runs them {step} there."
    )


def _of_bucket(settings: ColdTier, step: str, error: Exception) -> str:
    text = str(error)
    bucket, where = urlsplit(settings.url).netloc, settings.endpoint or "AWS"
    code = found.group(1) if (found := _CODE.search(text)) else ""
    if _METADATA.search(text):
        return (
            "There are no credentials for 'archive': set its access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY."
        )
    if isinstance(error, TimeoutError) or _NOT_SENT in text:
        return f"Nothing answers at {where}: check 'endpoint' and 'region' of 'archive', and the network."
    if isinstance(error, FileNotFoundError):
        return f"There is no bucket {bucket} at {where}: create it, or check 'url' and 'endpoint' of 'archive'."
    said = f" ({code})" if code else ""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        return (
            f"{where} does not let these credentials {step} objects in the bucket {bucket}{said}: check access_key_id "
            f"and secret_access_key of 'archive', and let their user read, write, list and delete objects there."
        )
    return f"{where} refuses to {step} an object in the bucket {bucket}{said}: check 'region' and 'url' of 'archive'."
