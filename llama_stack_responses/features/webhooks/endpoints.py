"""The endpoints of users in the store, and their secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ...core.errors import ApiError, bad_request
from ...core.ids import new_ordered_id, tag_of
from ...core.owner import Owner
from ...sealing.sealer import Sealer, UnknownSecret, Unopened
from ...store.conflict_retry import ConflictRetry
from ...store.content_names import Hasher
from ...store.placement import Placement
from ...store.records import (
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
    find_replicated,
    pages_of,
    partitions_of,
)
from .rows import DAY_SECONDS, DELIVERIES, QUEUE, Endpoint, Secret, State, endpoint_key, state_key
from .signing import hint_of, new_secret

OVERLAP_SECONDS: Final = DAY_SECONDS
"""Time for which the old secret is valid after a rotation that keeps it."""

_FORMER: Final = 8
"""Former secrets that are kept at most: each makes messages longer by a signature."""
_PURPOSE: Final = "webhook secret"
_MOST: Final = 1_000
"""Endpoints of one owner that are read, more than any setting allows."""


class Endpoints:
    """The endpoints of users.

    Args:
        records: the store.
        sealer: seals their secrets; None if these are not read or written.
    """

    def __init__(self, records: Records, sealer: Sealer | None = None) -> None:
        self._records, self._sealer, self._placement = records, sealer, Placement(partitions_of(records))

    async def now(self) -> float:
        """Return the time of the store's clock, in seconds since the epoch."""
        return await self._records.now()

    async def of_owner(self, of: str) -> list[Endpoint]:
        """Return the endpoints of the owner with this hash, oldest first."""
        prefix = endpoint_key(of, "")
        rows = await self._records.range(prefix, after_prefix(prefix), limit=_MOST)
        return [Endpoint.decode(row.value) for _, row in rows]

    async def find(self, of: str, endpoint_id: str) -> Endpoint | None:
        """Return an endpoint of the owner with this hash; None only if it does not come back with another server.

        Raises:
            ApiError: as from `find_replicated`.
        """
        found = await self._row(endpoint_key(of, endpoint_id), endpoint_id)
        return Endpoint.decode(found.value) if found else None

    async def _row(self, key: str, endpoint_id: str) -> Record | None:
        async def read() -> Record | None:
            return (await self._records.get_many([key])).get(key)

        return await find_replicated(self._records, tag_of(endpoint_id), read)

    async def state(self, endpoint_id: str) -> State | None:
        """Return the state of an endpoint; None if it does not fail."""
        return (await self.states([endpoint_id])).get(endpoint_id)

    async def states(self, endpoint_ids: Sequence[str]) -> dict[str, State]:
        """Return the states of those endpoints that fail, by their ids."""
        keys = {state_key(each): each for each in endpoint_ids}
        found = await self._records.get_many(list(keys)) if keys else {}
        return {keys[key]: State.decode(row.value) for key, row in found.items()}

    async def create(
        self, owner: Owner, name: str, url: str, event_types: Sequence[str], most: int
    ) -> tuple[Endpoint, str]:
        """Create an endpoint, unless the owner has `most`; return it with its secret.

        Raises:
            ApiError: 400, the owner has too many, or the secret cannot be stored safely.
        """
        of, at, retry = Hasher(owner).owner, await self._records.now(), ConflictRetry()
        now, endpoint_id = int(at), new_ordered_id("we", int(at * 1000), self._placement.of_owner(owner))
        secret, sealed = await self._new_secret(owner, endpoint_id)
        created = Endpoint(endpoint_id, owner, name, url, event_types, now, now, [sealed])
        counter = _counter(of)
        while True:
            await retry.wait()
            found = (await self._records.get_many([counter])).get(counter)
            if len(await self.of_owner(of)) >= most:
                message = f"You have {most} webhook endpoints, as many as this server allows: delete one first."
                raise bad_request(message, code="webhook_endpoint_limit_exceeded")
            unchanged = VersionIs(counter, found.version if found else None)
            ops = [Put(endpoint_key(of, endpoint_id), created.encode()), Put(counter, b"")]
            if await committed(self._records, ops, [unchanged]):
                return created, secret

    async def update(self, owner: Owner, endpoint_id: str, changes: dict[str, Any]) -> Endpoint:
        """Change an endpoint, and enable it if it was disabled.

        Raises:
            ApiError: 404, the owner has none with this id.
        """
        return await self._changed(owner, endpoint_id, changes)

    async def rotate(self, owner: Owner, endpoint_id: str, overlap_seconds: float) -> tuple[Endpoint, str]:
        """Give an endpoint a new secret, beside which the current one is valid for a time; return it with the secret.

        Raises:
            ApiError: 404, the owner has none with this id; 400 as from `create`.
        """
        secret, sealed = await self._new_secret(owner, endpoint_id)
        return await self._changed(owner, endpoint_id, {}, (sealed, overlap_seconds)), secret

    async def delete(self, owner: Owner, endpoint_id: str) -> None:
        """Delete an endpoint with its deliveries.

        Raises:
            ApiError: 404, the owner has none with this id.
        """
        of = Hasher(owner).owner
        if await self.find(of, endpoint_id) is None:
            raise no_endpoint(endpoint_id)
        # It goes last, so that an interrupted deletion can be repeated.
        await self._delete_deliveries(endpoint_id)
        await self._records.commit([Delete(endpoint_key(of, endpoint_id)), Delete(state_key(endpoint_id))])
        await self._delete_deliveries(endpoint_id)

    async def forget(self, of: str) -> None:
        """Delete what is kept of an owner beside their endpoints."""
        await self._records.commit([Delete(_counter(of))])

    async def secrets_of(self, endpoint: Endpoint, now: float) -> list[str]:
        """Return the secrets of an endpoint that are valid at a time.

        Raises:
            ApiError: 500, they cannot be opened; 503, the store does not answer.
        """
        valid = [each.sealed for each in endpoint.secrets if each.expires_at is None or each.expires_at > now]
        await self._opener.load()
        try:
            return [self._open(endpoint, each) for each in valid]
        except UnknownSecret:
            await self._opener.reload()
        except Unopened as error:
            raise _unreadable(error) from error
        try:
            return [self._open(endpoint, each) for each in valid]
        except Unopened as error:
            raise _unreadable(error) from error

    @property
    def _opener(self) -> Sealer:
        assert self._sealer, "there is no sealer"
        return self._sealer

    def _open(self, endpoint: Endpoint, sealed: str) -> str:
        return self._opener.open(sealed, purpose=_PURPOSE, owner=endpoint.owner, about=endpoint.id).decode()

    async def _new_secret(self, owner: Owner, endpoint_id: str) -> tuple[str, Secret]:
        sealer, secret = self._opener, new_secret()
        await sealer.load()
        sealer.check_protects_rows("the secret of a webhook endpoint")
        sealed = sealer.seal(secret.encode(), purpose=_PURPOSE, owner=owner, about=endpoint_id)
        return secret, Secret(sealed, hint_of(secret))

    async def _changed(
        self, owner: Owner, endpoint_id: str, changes: dict[str, Any], secret: tuple[Secret, float] | None = None
    ) -> Endpoint:
        key, retry = endpoint_key(Hasher(owner).owner, endpoint_id), ConflictRetry()
        while True:
            await retry.wait()
            found = await self._row(key, endpoint_id)
            if found is None:
                raise no_endpoint(endpoint_id)
            now, old = await self._records.now(), Endpoint.decode(found.value)
            new = replace(old, **changes)
            if secret:
                new = replace(new, secrets=[secret[0], *_still_valid(old.secrets, now, secret[1])])
            if new != old:
                new = replace(new, updated_at=int(now))
            ops: list[Op] = [Put(key, new.encode()), Delete(state_key(endpoint_id))]
            if await committed(self._records, ops, [VersionIs(key, found.version)]):
                return new

    async def _delete_deliveries(self, endpoint_id: str) -> None:
        for prefix in (f"{QUEUE}{endpoint_id}/", f"{DELIVERIES}{endpoint_id}/"):
            async for rows in pages_of(self._records, prefix):
                await self._records.commit([Delete(key) for key, _ in rows])


def no_endpoint(endpoint_id: str) -> ApiError:
    """Return the error for an endpoint that does not exist."""
    message = f"Webhook endpoint '{endpoint_id[:80]}' not found."
    return ApiError(404, message, param="webhook_endpoint_id", code="webhook_endpoint_not_found")


def _still_valid(secrets: Sequence[Secret], now: float, seconds: float) -> list[Secret]:
    """Return what stays of secrets after a rotation that keeps the current one for this time: the last few."""
    if not seconds:
        return []
    current, *former = secrets
    kept = [each for each in former if each.expires_at is not None and each.expires_at > now]
    return [Secret(current.sealed, current.hint, now + seconds), *kept][:_FORMER]


def _counter(of: str) -> str:
    return f"wh/c/{of}"


def _unreadable(error: Unopened) -> ApiError:
    return ApiError(500, f"The secret of this webhook endpoint cannot be decrypted: rotate it. {error}")
