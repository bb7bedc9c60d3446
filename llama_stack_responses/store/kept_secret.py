"""The secret that the servers of a store share if none is configured.

Beside an SQLite file it is a file that only its user may read. So neither the database nor a copy of it opens what was
sealed. A store on a server has no other place that all its servers reach than a row, which `backup` leaves out.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..logs import get_logger
from ..sealing.sealer import SECRET_BYTES
from .records import UNAVAILABLE, Ensure, Records

logger = get_logger(__name__)

KEPT_SECRET: Final = "secret"  # noqa: S105 - a key
"""The key of the row."""

_MADE: Final = "made a secret to seal reasoning with, kept in %s, since no 'secrets' are configured"


class SecretFile:
    """A secret in a file of its own, readable by its user alone.

    Args:
        path: the file; its folder is made if necessary.
    """

    apart = True

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self) -> bytes | None:
        """Return the secret; None if there is no file.

        Raises:
            ApiError: 503, the file cannot be read, or holds something else.
        """
        return await in_thread(self._read)

    async def make(self) -> bytes:
        """Return the secret; make the file if there is none.

        Raises:
            ApiError: also 503, it cannot be written.
        """
        return await in_thread(self._make)

    def _read(self) -> bytes | None:
        try:
            with self.path.open("rb") as file:
                return _decoded(file.read(SECRET_BYTES * 2), str(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble("read", error) from error

    def _make(self) -> bytes:
        if secret := self._read():
            return secret
        try:
            self._write(_new())
        except OSError as error:
            raise self._trouble("written", error) from error
        return self._make()

    def _write(self, text: bytes) -> None:
        """Write the file with its whole content at once, unless another process has done so."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)  # its mode is 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(name, self.path)
                _sync_folder(self.path.parent)
                logger.info(_MADE, self.path)
        finally:
            Path(name).unlink()

    def _trouble(self, what: str, error: OSError) -> ApiError:
        reason = (error.strerror or str(error)).lower()
        message = f"The file {self.path} with the secret of the response store cannot be {what}: {reason}."
        return ApiError(UNAVAILABLE, message)


class SecretRow:
    """A secret in a row of the store.

    Args:
        records: the store.
    """

    apart = False

    def __init__(self, records: Records) -> None:
        self._records = records

    async def read(self) -> bytes | None:
        """Return the secret; None if the row is absent.

        Raises:
            ApiError: 503, the store does not answer, or the row holds something else.
        """
        row = (await self._records.get_many([KEPT_SECRET])).get(KEPT_SECRET)
        return _decoded(row.value, f"the row '{KEPT_SECRET}' of the response store") if row else None

    async def make(self) -> bytes:
        """Return the secret; write the row if it is absent.

        Raises:
            ApiError: as `read`.
        """
        secret = await self.read()
        if secret is None:
            mine = _new()
            await self._records.commit([Ensure(KEPT_SECRET, mine)])
            secret = await self.read()
            if secret == b64decode(mine):
                logger.info(_MADE, "the response store")
        assert secret is not None, "the row has no expiry, and nothing deletes it"
        return secret


class SecretInMemory:
    """A secret that ends with the process, as its store does."""

    apart = True

    def __init__(self) -> None:
        self._secret: bytes | None = None

    async def read(self) -> bytes | None:
        """Return the secret; None if it was not made."""
        return self._secret

    async def make(self) -> bytes:
        """Return the secret; make it if there is none."""
        if self._secret is None:
            self._secret = os.urandom(SECRET_BYTES)
            logger.warning(
                "no 'secrets' are configured, and the store 'memory' keeps none: after a restart, clients that send "
                "the encrypted_content of earlier reasoning items get an error"
            )
        return self._secret


def _new() -> bytes:
    return b64encode(os.urandom(SECRET_BYTES))


def _decoded(text: bytes, place: str) -> bytes:
    """Return a secret in base64, as the setting 'secrets' takes it.

    Raises:
        ApiError: 503, it is not a secret.
    """
    try:
        secret = b64decode(text.strip(), validate=True)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ApiError(UNAVAILABLE, f"There is no secret of {SECRET_BYTES} bytes in {place}: restore it, or remove it.")
    return secret


def _sync_folder(folder: Path) -> None:
    """Have the folder's new entry survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
