"""Keys with which users authenticate: a row for each, without its secret.

The row `ak/<key>` is a key (`AccessKey`), `au/<key>` is when it was used last. A token is `sk-lsr-<key>-<secret>`: the
24 digits of the key's id, and 256 random bits. Only a hash of the token is stored.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from ..core.errors import ApiError
from ..core.ids import new_id
from ..core.owner import Owner
from ..core.types import Json
from . import codec
from .conflict_retry import ConflictRetry
from .records import Delete, Put, Record, Records, VersionIs, committed, pages_of

KEY_PREFIX: Final = "ak/"
_USE_PREFIX: Final = "au/"
_ID_PREFIX: Final = "key_"
_TOKEN: Final = re.compile(r"sk-lsr-([0-9a-f]{24})-[0-9A-Za-z_-]{43}")
_SHOWN_CHARACTERS: Final = 4
_NO_DIGEST: Final = "0" * 64
_MAX_SECRETS: Final = 4
"""Secrets of a key that are accepted at a time: the last one, and those that rotations have replaced."""
_ENDED_SECONDS: Final = 90 * 86_400.0
"""Time for which a key is still listed after it has expired or was revoked."""


@dataclass(frozen=True, slots=True)
class KeySecret:
    """A secret of a key.

    Attributes:
        digest: SHA-256 of the token in hex.
        shown: the end of the token, by which its user recognizes it.
        created_at: in seconds since the epoch.
        expires_at: when a rotation ends it, in seconds since the epoch; None for the last one.
    """

    digest: str
    shown: str
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key.

    Attributes:
        id: `key_` and 24 hexadecimal digits.
        name: what people call it.
        owner: the user that it authenticates, without attributes.
        created_at: in seconds since the epoch.
        secrets: its secrets, the newest first.
        team: the user's team; empty for none.
        roles: the user's roles.
        models: the names of the models that it may be used for, where `*` at the end stands for any rest; None for all.
        limits: its limits, by the names of `LimitedAmounts`.
        expires_at: in seconds since the epoch; None for never.
        revoked_at: when it was revoked, in seconds since the epoch; None if it was not.
    """

    id: str
    name: str
    owner: Owner
    created_at: int
    secrets: Sequence[KeySecret]
    team: str = ""
    roles: Sequence[str] = ()
    models: Sequence[str] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    expires_at: int | None = None
    revoked_at: int | None = None

    @property
    def user(self) -> Owner:
        """The user that the key authenticates, with the attributes that the host gets."""
        given = {
            "teams": [self.team] if self.team else [],
            "roles": list(self.roles),
            "models": list(self.models or ()),
            "limits": [f"{name}={amount}" for name, amount in self.limits.items()],
        }
        return Owner(
            self.owner.principal,
            {"keys": [self.id], **{name: values for name, values in given.items() if values}},
            self.owner.tenant,
        )

    @property
    def redacted(self) -> str:
        """The token without its secret, as lists show it."""
        return f"{_token_head(self.id)}...{self.secrets[0].shown}"

    def status(self, now: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    def encode(self) -> bytes:
        """Return the row's value."""
        return codec.encode(
            {
                "id": self.id,
                "name": self.name,
                "owner": self.owner.encode(),
                "created_at": self.created_at,
                "secrets": [[each.digest, each.shown, each.created_at, each.expires_at] for each in self.secrets],
                "team": self.team,
                "roles": list(self.roles),
                "models": None if self.models is None else list(self.models),
                "limits": dict(self.limits),
                "expires_at": self.expires_at,
                "revoked_at": self.revoked_at,
            }
        )

    @staticmethod
    def decode(record: Record) -> AccessKey:
        """Decode the result of `encode`."""
        stored: Json = codec.decode(record.value)
        known = codec.known(AccessKey, stored)
        kept = [KeySecret(*each) for each in stored["secrets"]]
        return AccessKey(**{**known, "owner": Owner(*stored["owner"]), "secrets": kept})


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a new key is to have; see `AccessKey`."""

    name: str
    owner: Owner
    team: str = ""
    roles: Sequence[str] = ()
    models: Sequence[str] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A key that a token was accepted for.

    Attributes:
        key: the key.
        seconds: time until the token expires; None for never.
    """

    key: AccessKey
    seconds: float | None


class AccessKeys:
    """Reads and writes the keys of a store.

    Args:
        records: the store.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def create(self, new: NewKey, key_id: str | None = None) -> tuple[AccessKey, str]:
        """Create a key; return it with its token, which is not stored.

        Args:
            key_id: its id, from `new_key_id`; None makes one.
        """
        key_id = key_id or new_key_id()
        now = await self._records.now()
        token, secret = _new_secret(key_id, now)
        key = AccessKey(
            key_id,
            new.name,
            Owner(new.owner.principal, tenant=new.owner.tenant),
            int(now),
            [secret],
            new.team,
            new.roles,
            new.models,
            new.limits,
            None if new.seconds is None else int(now + new.seconds),
        )
        await self._records.commit([_put(key)], [VersionIs(_row(key_id), None)])
        return key, token

    async def now(self) -> float:
        """Return the time of the store, in seconds since the epoch."""
        return await self._records.now()

    async def find(self, key_id: str) -> AccessKey | None:
        """Return a key; None if there is none."""
        record = (await self._records.get_many([_row(key_id)])).get(_row(key_id))
        return AccessKey.decode(record) if record else None

    async def all(self) -> AsyncIterator[AccessKey]:
        """Yield all keys, in the order of their ids."""
        async for page in pages_of(self._records, KEY_PREFIX):
            for _, record in page:
                yield AccessKey.decode(record)

    async def authenticate(self, token: str) -> Authenticated | None:
        """Return the key of a token; None if it is unknown, or not accepted any more.

        A wrong secret takes as long as a right one, and as one of an unknown key.
        """
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        key = await self.find(f"{_ID_PREFIX}{match[1]}")
        now, digest = await self._records.now(), _digest(token)
        found: KeySecret | None = None
        for secret in key.secrets if key else [KeySecret(_NO_DIGEST, "", 0)]:
            if hmac.compare_digest(secret.digest, digest):
                found = secret
        if key is None or found is None or key.status(now) != "active":
            return None
        ends = [each for each in (key.expires_at, found.expires_at) if each is not None]
        return None if ends and min(ends) <= now else Authenticated(key, min(ends) - now if ends else None)

    async def rotate(self, key_id: str, overlap_seconds: float) -> tuple[AccessKey, str] | None:
        """Give a key a new secret; return it with its token. None if there is no such key, or it has ended.

        Args:
            overlap_seconds: time for which the secret that was the newest is still accepted.
        """
        now = await self._records.now()
        token, secret = _new_secret(key_id, now)

        def rotated(key: AccessKey) -> AccessKey | None:
            if key.status(now) != "active":
                return None
            ends = int(now + overlap_seconds)
            older = [replace(each, expires_at=min(each.expires_at or ends, ends)) for each in key.secrets]
            kept = [each for each in older if each.expires_at is not None and each.expires_at > now]
            return replace(key, secrets=[secret, *kept[: _MAX_SECRETS - 1]])

        key = await self._changed(key_id, rotated)
        return (key, token) if key else None

    async def revoke(self, key_id: str) -> AccessKey | None:
        """Revoke a key, whose secrets are forgotten; return it. None if there is no such key."""
        now = int(await self._records.now())

        def revoked(key: AccessKey) -> AccessKey:
            gone = [KeySecret(_NO_DIGEST, key.secrets[0].shown, key.secrets[0].created_at)]
            return replace(key, secrets=gone, revoked_at=key.revoked_at or now)

        return await self._changed(key_id, revoked)

    async def delete(self, key_id: str) -> bool:
        """Delete all that is stored of a key; return whether there was one."""
        found = await self.find(key_id) is not None
        await self._records.commit([Delete(_row(key_id)), Delete(_use_row(key_id))])
        return found

    async def used(self, key_id: str) -> None:
        """Write that a key is used now."""
        now = int(await self._records.now())
        await self._records.commit([Put(_use_row(key_id), str(now).encode(), now + _ENDED_SECONDS)])

    async def last_uses(self, key_ids: Sequence[str]) -> dict[str, int]:
        """Return when keys were used last, in seconds since the epoch; those that were not are left out."""
        rows = await self._records.get_many([_use_row(each) for each in key_ids])
        return {each: int(rows[_use_row(each)].value) for each in key_ids if _use_row(each) in rows}

    async def _changed(self, key_id: str, change: Callable[[AccessKey], AccessKey | None]) -> AccessKey | None:
        retry = ConflictRetry()
        while True:
            record = (await self._records.get_many([_row(key_id)])).get(_row(key_id))
            changed = change(AccessKey.decode(record)) if record else None
            if changed is None or record is None:
                return None
            if await committed(self._records, [_put(changed)], [VersionIs(_row(key_id), record.version)]):
                return changed
            await retry.wait()


def new_key_id() -> str:
    """Return the id of a new key."""
    return new_id(_ID_PREFIX.removesuffix("_"))


def check_key_id(value: str) -> str:
    """Return the id if it has the form of a key's.

    Raises:
        ApiError: 404, no key has such an id.
    """
    if not re.fullmatch(rf"{_ID_PREFIX}[0-9a-f]{{24}}", value):
        raise no_key(value)
    return value


def no_key(key_id: str) -> ApiError:
    """Return the error for a key that does not exist."""
    return ApiError(404, f"Key '{key_id[:80]}' not found.", param="key_id", code="key_not_found")


def _put(key: AccessKey) -> Put:
    ends = [each for each in (key.expires_at, key.revoked_at) if each is not None]
    return Put(_row(key.id), key.encode(), min(ends) + _ENDED_SECONDS if ends else None)


def _row(key_id: str) -> str:
    return f"{KEY_PREFIX}{key_id.removeprefix(_ID_PREFIX)}"


def _use_row(key_id: str) -> str:
    return f"{_USE_PREFIX}{key_id.removeprefix(_ID_PREFIX)}"


def _token_head(key_id: str) -> str:
    return f"sk-lsr-{key_id.removeprefix(_ID_PREFIX)}"


def _new_secret(key_id: str, now: float) -> tuple[str, KeySecret]:
    token = f"{_token_head(key_id)}-{secrets.token_urlsafe(32)}"
    return token, KeySecret(_digest(token), token[-_SHOWN_CHARACTERS:], int(now))


def _digest(token: str) -> str:
    # A secret of 256 random bits needs no slow hash: they cannot all be tried.
    return sha256(f"llama-stack-responses key\n{token}".encode()).hexdigest()
