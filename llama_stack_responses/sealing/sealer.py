"""Authenticated encryption of values for one owner and one purpose, with a secret that the servers of a store share.

A seal is base64 of the format's number (1 byte), the secret's id (4), a nonce (12), and the AES-256-GCM ciphertext with
its tag. Each owner and purpose has its own key, derived from the secret. No key can open another's seals, and no key
seals enough values for random nonces to collide.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..core.errors import ApiError, bad_request
from ..core.owner import Owner

SECRET_BYTES: Final = 32
"""Size of a secret in bytes."""

SEALED: Final = "encrypted_content"
"""The field of an item that holds the seal."""

_FORMAT: Final = b"\1"
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_PIECE_CHARACTERS: Final = 65_536
"""Characters that are decoded at a time, a multiple of four."""
_HEAD: Final = len(_FORMAT) + _ID_BYTES


_RETRY_SECONDS: Final = 1.0
"""Time after which a server with a configured secret asks again for one that it could not read."""


class Unopened(Exception):  # noqa: N818 - the caller decides what kind of error it is
    """A seal that does not open; the text states the reason, without the sealed content."""


class UnknownSecret(Unopened):
    """The secret of a seal is not known here; the seal itself may be good."""

    def __init__(self) -> None:
        super().__init__(
            "It was sealed with a secret that this server does not have. Leave the item out, or have the operator add "
            "that secret to the setting 'secrets'."
        )


class SecretKeeper(Protocol):
    """Keeps the one secret of a store that has none configured, for all servers of the store."""

    @property
    def apart(self) -> bool:
        """Whether the secret is kept apart from the rows of the store, so that it protects sealed values in them."""

    async def read(self) -> bytes | None:
        """Return the secret; None if none was made.

        Raises:
            ApiError: 503, it cannot be read.
        """

    async def make(self) -> bytes:
        """Return the secret; make it if there is none. Of servers that do so at once, all get that of one of them.

        Raises:
            ApiError: 503, it cannot be read or written.
        """


def unverified(item: Mapping[str, Any], reason: Unopened) -> ApiError:
    """Return the 400 of an item whose `encrypted_content` does not open."""
    seal = item[SEALED]
    which = item.get("id") or f"{seal[:4]}...{seal[-4:]}"
    message = f"The encrypted content for item {which} could not be verified. Reason: {reason}"
    message += " The operator can have such items left out with the setting 'unreadable_reasoning: drop'."
    return bad_request(message, code="invalid_encrypted_content")


class Sealer:
    """Seals with the first secret, and opens seals of any of them.

    Args:
        secrets: those of the configuration, each of `SECRET_BYTES` bytes. To rotate, put a new one before the old ones,
            and remove an old one once its seals are no longer needed.
        keeper: keeps the secret of the store. It seals only if none is configured, and opens in any case.
    """

    def __init__(self, secrets: Sequence[bytes], keeper: SecretKeeper | None = None) -> None:
        self._secrets: dict[bytes, bytes] = {}
        self._first: bytes | None = None
        self._keeper = keeper
        self._loaded = keeper is None
        self._load_at = 0.0
        for secret in secrets:
            self._add(secret)
        self._configured = bool(secrets)

    @property
    def fingerprints(self) -> Sequence[str]:
        """Identify the secrets without revealing them, that of the first one first."""
        return tuple(map(_fingerprint, self._secrets.values()))

    @property
    def protects_rows(self) -> bool:
        """Whether a value that is sealed here may be stored: its secret is not in the same store."""
        return self._configured or (self._keeper is not None and self._keeper.apart)

    def check_protects_rows(self, what: str, param: str | None = None) -> None:
        """Check that values that are sealed here may be stored.

        Args:
            what: what cannot be stored otherwise, for the error.
            param: the field of the request that has it stored.

        Raises:
            ApiError: 400, their secret would be in the same store.
        """
        if self.protects_rows:
            return
        message = (
            f"This server cannot store {what}: it has no encryption key that is not in the same store. Its operator "
            "can set 'secrets' in the configuration of the responses provider."
        )
        raise bad_request(message, param, "unsupported_value")

    async def load(self) -> None:
        """Get the secret of the store, before anything is sealed or opened; do nothing if that was done.

        Raises:
            ApiError: 503, the secret cannot be read, and there is no other one to seal with.
        """
        if self._loaded or self._keeper is None:
            return
        if not self._configured:
            self._add(await self._keeper.make())
        elif monotonic() >= self._load_at:
            try:
                kept = await self._keeper.read()
            except ApiError:
                self._load_at = monotonic() + _RETRY_SECONDS
                return
            if kept:
                self._add(kept)
        self._loaded = True

    async def reload(self) -> None:
        """Get the secret of the store again: another server may have made it since.

        Raises:
            ApiError: as `load`.
        """
        self._loaded = self._keeper is None
        await self.load()

    def _add(self, secret: bytes) -> None:
        self._secrets.setdefault(_id(secret), secret)
        self._first = self._first or _id(secret)

    def seal(self, value: bytes, *, purpose: str, owner: Owner, about: str = "") -> str:
        """Return the sealed value, in characters that are safe in JSON and URLs.

        Args:
            purpose: at most 16 ASCII characters; a seal opens only for its purpose.
            owner: the owner of the value; their groups do not count.
            about: what the value belongs to, such as a response's id.
        """
        assert self._first is not None, "the secret is not loaded"
        head, nonce = _FORMAT + self._first, os.urandom(_NONCE_BYTES)
        sealed = self._cipher(self._first, purpose, owner).encrypt(nonce, value, head + about.encode())
        return _encoded(head + nonce, sealed)

    def open(self, seal: str, *, purpose: str, owner: Owner, about: str = "") -> bytes:
        """Return the value that was sealed for the same purpose, owner and `about`.

        Raises:
            Unopened: it was sealed for another one, with an unknown secret, or is damaged.
        """
        data = _decoded(seal)
        head, nonce = bytes(data[:_HEAD]), bytes(data[_HEAD : _HEAD + _NONCE_BYTES])
        sealed = memoryview(data)[_HEAD + _NONCE_BYTES :]
        name = head[len(_FORMAT) :]
        if head[: len(_FORMAT)] != _FORMAT or len(nonce) < _NONCE_BYTES:
            raise Unopened("It is not a sealed value of this server.")
        if name not in self._secrets:
            raise UnknownSecret
        try:
            return self._cipher(name, purpose, owner).decrypt(nonce, sealed, head + about.encode())
        except InvalidTag:
            raise Unopened("It is damaged, or it was sealed for another user or purpose.") from None

    def _cipher(self, name: bytes, purpose: str, owner: Owner) -> AESGCM:
        tenant = blake2b(owner.tenant.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        principal = owner.principal.encode("utf-8", "surrogatepass")
        person = purpose.encode("ascii")
        return AESGCM(blake2b(tenant + principal, digest_size=32, key=self._secrets[name], person=person).digest())


def _encoded(begin: bytes, rest: bytes) -> str:
    """Return these bytes as base64, in pieces as `_decoded` reads them."""
    size = _PIECE_CHARACTERS // 4 * 3
    first = size - len(begin)
    text = urlsafe_b64encode(begin + rest[:first]).decode()
    for start in range(first, len(rest), size):
        text += urlsafe_b64encode(rest[start : start + size]).decode()  # it grows in place
    return text


def _decoded(seal: str) -> bytearray:
    """Return the bytes of a seal, or none if it is not base64.

    It is decoded in pieces: one call for megabytes would keep all other threads waiting.
    """
    decoded = bytearray()
    for start in range(0, len(seal), _PIECE_CHARACTERS):
        piece = seal[start : start + _PIECE_CHARACTERS]
        try:
            data = urlsafe_b64decode(piece.encode("ascii"))
        except ValueError:
            return bytearray()
        if urlsafe_b64encode(data).decode() != piece:  # decoding ignores some invalid characters
            return bytearray()
        if piece.endswith("=") and start + _PIECE_CHARACTERS < len(seal):
            return bytearray()
        decoded += data
    return decoded


def _fingerprint(secret: bytes) -> str:
    return blake2b(key=secret, digest_size=8, person=b"fingerprint").hexdigest()


def _id(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=_ID_BYTES, person=b"id").digest()
