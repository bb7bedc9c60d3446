"""Cleanup of the host's persistent registry."""

from __future__ import annotations

from typing import Any

from ..logs import get_logger

logger = get_logger(__name__)


async def forget_tool_groups_without_provider(router: Any) -> None:
    """Delete tool groups whose provider is no longer in the configuration.

    llama-stack would otherwise fail to start with another provider for such a group: it asks the removed provider to
    unregister it.

    Args:
        router: the host's implementation of its tool runtime API.
    """
    table = router.routing_table
    for each in await table.dist_registry.get_all():
        if each.type == "tool_group" and each.provider_id not in table.impls_by_provider_id:
            logger.info("removed a tool group without a provider: %r", each.identifier)
            await table.dist_registry.delete(each.type, each.identifier)
