"""The objects of a bucket or a folder."""

from __future__ import annotations

import asyncio
import atexit
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from ...concurrency.offloading import in_thread
from ...core.errors import ApiError
from ...core.setting_values import WrongConfiguration
from ...logs import Outage, get_logger
from ...store.codec import UnreadableError
from ...store.records import Put, Records, VersionIs, committed
from .prefixes import FOLDER
from .settings import ColdTier

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Config

logger = get_logger(__name__)

_CONNECT_SECONDS: Final = 3
_SECONDS: Final = 60
"""Longest time of one request."""
_ANSWER_SECONDS: Final = 10
"""Longest time until a read has its first bytes: a client waits for it."""
_SLOWEST: Final = 2**20
"""Bytes a second that are read at least."""
_RETRIES: Final = 2
_RETRY_SECONDS: Final = 10
_ENDING_SECONDS: Final = 0.1
"""Seconds within which the threads of obstore are done with a call that has returned."""
_AWAY: Final = "This content is in the object store of the server, which does not answer: try again."
_SUFFIX: Final = ".pack"

# While the interpreter ends, such a thread aborts the process.
atexit.register(time.sleep, _ENDING_SECONDS)


class ObjectsAway(ApiError):  # noqa: N818 - as `ApiError`, it is an answer
    """The object store does not answer, or refuses."""

    def __init__(self) -> None:
        super().__init__(503, _AWAY, retry_after=10)


class ObjectMissing(UnreadableError):  # noqa: N818 - as `ApiError`, it is an answer
    """The object store answers, and lacks an object.

    Args:
        path: the object.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"This content is in {path} of the object store, which is missing there: it cannot be read until the "
            "operator restores that object.",
            headers={"x-should-retry": "false"},
        )


class Stored(NamedTuple):
    """An object: its name, and its size in bytes."""

    name: str
    size: int


class Objects:
    """Reads and writes the objects of a store, which are in a folder of their own: others may have the same place.

    Every method raises `ObjectsAway` if the object store does not answer, or refuses, as where it has no such bucket.

    Args:
        settings: where they are.
        records: the store.

    Raises:
        WrongConfiguration: the settings cannot be used.
    """

    def __init__(self, settings: ColdTier, records: Records) -> None:
        self._records = records
        self._folder = ""
        self._outage = Outage()
        try:
            self._store = open_place(settings)
        except (BaseError, ValueError, OSError) as error:
            raise WrongConfiguration(f"'archive' cannot be used: {error}") from error

    async def put(self, name: str, data: AsyncIterator[bytes]) -> None:
        """Write an object, whose data are sent while they come; what they raise is raised, and nothing is written."""
        path = await self._path(name)
        with self._answers():
            await obstore.put_async(self._store, path, data)

    async def read(self, name: str, at: int, size: int) -> bytes:
        """Return `size` bytes of an object.

        Raises:
            UnreadableError: it ends before that, or is missing.
        """
        path = await self._path(name)
        with self._answers():
            # A store that hangs takes connections, and answers none.
            async with asyncio.timeout(_ANSWER_SECONDS + size / _SLOWEST):
                try:
                    data = await self._range(path, at, size)
                except FileNotFoundError as error:
                    if await self._is_there():
                        raise ObjectMissing(path) from error
                    raise
        if data is None:
            raise UnreadableError("An object of packed responses is too short.")
        return data

    async def _range(self, path: str, at: int, size: int) -> bytes | None:
        """Return `size` bytes of an object; None if it ends before that."""
        failure: Exception | None = None
        try:
            data = bytes(await obstore.get_range_async(self._store, path, start=at, length=size))
        except (BaseError, OSError) as error:
            # A range that begins behind the end is refused like anything else: the size tells.
            data, failure = b"", error
        if len(data) == size:
            return data
        there = (await obstore.head_async(self._store, path))["size"]
        if there >= at + size:
            raise failure or OSError("A part of an object is missing.")
        return None

    async def _is_there(self) -> bool:
        """Return whether the bucket or the folder is there: a folder of another machine may not be mounted."""
        folder = await self._path("")
        if isinstance(self._store, LocalStore):
            return await in_thread((Path(self._store.prefix or "/") / folder).is_dir)
        await anext(obstore.list(self._store, folder).__aiter__(), None)
        return True

    async def delete(self, name: str) -> None:
        """Delete an object, unless another server has."""
        path = await self._path(name)
        with self._answers(), suppress(FileNotFoundError):
            await obstore.delete_async(self._store, path)

    async def all(self) -> AsyncIterator[Stored]:
        """Yield all objects."""
        folder = await self._path("")
        pages = obstore.list(self._store, folder).__aiter__()
        while True:
            with self._answers():
                page = await anext(pages, None)
            if page is None:
                return
            for each in page:
                name = each["path"].rpartition("/")[2]
                if name.endswith(_SUFFIX):
                    yield Stored(name.removesuffix(_SUFFIX), each["size"])

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
            self._outage.over()
        except (BaseError, OSError) as error:
            # The message may name addresses and keys.
            reason = type(error).__name__
            if self._outage.should_log(ValueError(reason)):
                logger.warning("the object store of 'archive' does not answer, or refuses: %s", reason)
            raise ObjectsAway from error

    async def _path(self, name: str) -> str:
        """Return the path of an object, or of the folder."""
        if not self._folder:
            folder = Put(FOLDER, secrets.token_hex(8).encode(), uses_reserve=True)
            await committed(self._records, [folder], [VersionIs(FOLDER, None)])
            self._folder = (await self._records.get_many([FOLDER]))[FOLDER].value.decode()
        return f"{self._folder}/{name}{_SUFFIX}" if name else self._folder


def open_place(settings: ColdTier) -> ObjectStore:
    """Return the bucket or the folder; a folder that is missing is created.

    Raises:
        BaseError, ValueError, OSError: the settings cannot be used.
    """
    if settings.url.startswith("file:"):
        return LocalStore.from_url(settings.url, mkdir=True)
    secret = settings.secret_access_key
    given = {
        "endpoint": settings.endpoint,
        "region": settings.region,
        "access_key_id": settings.access_key_id,
        "secret_access_key": secret.get_secret_value() if secret else None,
    }
    return S3Store.from_url(
        settings.url,
        config=cast("S3Config", {name: value for name, value in given.items() if value}),
        client_options={
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=_SECONDS),
            "allow_http": (settings.endpoint or "").startswith("http://"),
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )
