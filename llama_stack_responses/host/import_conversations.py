"""Reads the conversations in the host's own table, to import them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

from ..core.owner import ANONYMOUS, Owner
from ..service.conversation_import import FoundConversation, ImportImpossible
from .platform import ConversationServiceConfig, ConversationServiceImpl, StackConfig

_CONVERSATIONS_PER_QUERY: Final = 500
"""Conversations whose items are read together: each query scans the whole table, which has no index."""


async def stored_conversations(stack: StackConfig) -> AsyncGenerator[FoundConversation]:
    """Yield every conversation of every user, without the host's access policy."""
    service = ConversationServiceImpl(ConversationServiceConfig(config=stack), {})
    try:
        # Creates and migrates the tables, as the host's server does when it starts.
        await service.initialize()
        tables: Any = service.sql_store.sql_store
        rows = (await tables.fetch_all("openai_conversations", order_by=[("id", "asc")])).data
        for start in range(0, len(rows), _CONVERSATIONS_PER_QUERY):
            some = rows[start : start + _CONVERSATIONS_PER_QUERY]
            items = await _items(tables, some[0]["id"], some[-1]["id"])
            for row in some:
                yield _conversation(row, items.get(row["id"], []))
    except Exception as error:
        raise unreadable("conversations", error) from error
    finally:
        # OGX opens the store in `initialize`, which can fail before or after that.
        if store := getattr(service, "sql_store", None):
            await store.sql_store.shutdown()


def unreadable(what: str, error: Exception) -> ImportImpossible:
    """Return the reason to end the import: the host's table of `what` cannot be read.

    Each database raises different errors, whose text can have the password.
    """
    return ImportImpossible(
        f"The host's {what} cannot be read ({type(error).__name__}): check 'storage' in the configuration, and the "
        "variables that it uses, such as STATE_DIR."
    )


async def _items(tables: Any, first: str, last: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the items of some conversations, by conversation, oldest first."""
    page = await tables.fetch_all(
        "conversation_items",
        # The concatenation prevents the use of an index, whose order differs from that of the rows.
        where_sql="conversation_id || '' BETWEEN :first AND :last",
        where_sql_params={"first": first, "last": last},
    )
    by_conversation: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(page.data, key=_sort_key):
        by_conversation.setdefault(row["conversation_id"], []).append(row)
    return by_conversation


def _sort_key(row: dict[str, Any]) -> tuple[bool, int, int]:
    """Return the sort key of an item: OGX numbers items; unnumbered ones are older and were written by llama-stack."""
    number = row.get("sort_order")
    return number is not None, number or 0, row["created_at"]


def _conversation(row: dict[str, Any], items: Iterable[dict[str, Any]]) -> FoundConversation:
    by_id = {item["id"]: item["item_data"] for item in items}
    return FoundConversation(row["id"], owner_of(row), row["created_at"], row.get("metadata") or {}, by_id)


def owner_of(row: dict[str, Any]) -> Owner:
    """Return the owner of a row of the host."""
    principal = row.get("owner_principal")
    attributes, tenant = row.get("access_attributes") or {}, row.get("tenant_id") or ""
    return Owner(principal, attributes, tenant) if principal else ANONYMOUS
