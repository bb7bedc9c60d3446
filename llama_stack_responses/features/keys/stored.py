"""The keys of all users, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.owner import Owner
from ...core.types import Json
from ...store.access_keys import KEY_PREFIX, AccessKey, AccessKeys, no_key
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records
from .key_objects import exported


class KeysOfOwners:
    """The keys in a store, as a `FeatureStore`.

    Args:
        keys: the keys.
    """

    name = "keys"
    prefix = KEY_PREFIX

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's keys, oldest first."""
        for key in await self._keys_of(owner):
            yield key.id

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's keys, oldest first, without what their tokens are verified by."""
        for key in await self._keys_of(owner):
            yield Exported("key", key.user, exported(key), "secrets", _secrets(key))

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete a key.

        Raises:
            ApiError: 404, the owner has no such key.
        """
        key = await self._keys.find(object_id)
        if key is None or key.owner.identity != owner.identity:
            raise no_key(object_id)
        await self._keys.delete(object_id)

    async def forget(self, owner: Owner) -> None:
        """Do nothing: a user has no more than keys."""

    async def _keys_of(self, owner: Owner) -> list[AccessKey]:
        # All keys are read: a store has few, and no list of those of an owner.
        own = [each async for each in self._keys.all() if each.owner.identity == owner.identity]
        return sorted(own, key=lambda key: (key.created_at, key.id))


async def _secrets(key: AccessKey) -> AsyncIterator[Json]:
    for each in key.secrets:
        yield {"ends_in": each.shown, "created_at": each.created_at, "expires_at": each.expires_at}


def open_store(records: Records, _: Decoder) -> KeysOfOwners:
    """Return the keys in a store."""
    return KeysOfOwners(AccessKeys(records))
