"""The webhook endpoints of all users, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.owner import Owner
from ...core.types import Json
from ...store.content_names import Hasher
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records
from .deliveries import Deliveries
from .endpoints import Endpoints
from .objects import delivery_object, endpoint_object
from .rows import ENDPOINTS


class EndpointsOfOwners:
    """The webhook endpoints in a store, as a `FeatureStore`.

    Args:
        records: the store.
    """

    name = "webhook endpoints"
    prefix = ENDPOINTS

    def __init__(self, records: Records) -> None:
        self._endpoints = Endpoints(records)
        self._deliveries = Deliveries(records, self._endpoints, {}, 0.0)
        self.delete = self._endpoints.delete

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's endpoints, oldest first."""
        for each in await self._endpoints.of_owner(Hasher(owner).owner):
            yield each.id

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's endpoints, oldest first, without their secrets."""
        for each in await self._endpoints.of_owner(Hasher(owner).owner):
            fields = endpoint_object(each, await self._endpoints.state(each.id))
            del fields["object"]
            yield Exported("webhook_endpoint", each.owner, fields, "deliveries", self._deliveries_to(each.id))

    async def forget(self, owner: Owner) -> None:
        """Delete the events and deliveries of an owner's responses, also those for endpoints of the configuration."""
        of = Hasher(owner).owner
        await self._deliveries.forget(of)
        await self._endpoints.forget(of)

    async def _deliveries_to(self, endpoint: str) -> AsyncIterator[Json]:
        async for each in self._deliveries.every(endpoint):
            yield delivery_object(each)


def open_store(records: Records, _: Decoder) -> EndpointsOfOwners:
    """Return the webhook endpoints in a store."""
    return EndpointsOfOwners(records)
