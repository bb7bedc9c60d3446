"""The conversations in the host's own table, for the one import of them into our store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from llama_stack_responses.config import MemoryStore, ResponsesConfig
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.importing import CannotImport, Found, Report, import_conversations
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.stores import open_records

from .keyvalue import backend
from .platform import (
    ConversationServiceConfig,
    ConversationServiceImpl,
    StackConfig,
    initialize_storage,
    parse_and_maybe_upgrade_config,
)

_AT_ONCE: Final = 500
"""Conversations whose items are read together: each reading goes through the whole table, which has no index."""


def import_from(path: Path) -> Report:
    """Imports the conversations of the stack with this configuration into the store of its responses provider.

    Raises:
        CannotImport: the configuration is wrong, or a database or the store cannot be reached.
    """
    stack = _read_stack(path)
    return asyncio.run(_import(stack, _responses_config(stack, path)))


def _read_stack(path: Path) -> StackConfig:
    try:
        stack: StackConfig = parse_and_maybe_upgrade_config(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise CannotImport(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        raise CannotImport(f"{path} is not a stack's configuration: {_first(error)}.") from None
    except yaml.YAMLError:
        # What it says quotes the file, which may hold a secret.
        raise CannotImport(f"{path} is not a stack's configuration: it is not YAML.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The host's own sentence may go over several lines.
        reason = " ".join(str(error).split()).rstrip(".")
        raise CannotImport(f"{path} is not a stack's configuration: {reason}.") from error
    return stack


def _responses_config(stack: StackConfig, path: Path) -> ResponsesConfig:
    providers = stack.providers.get("responses", [])
    found = next((each for each in providers if each.provider_type == "inline::kv"), None)
    if found is None:
        raise CannotImport(f"{path} has no provider 'inline::kv' under providers.responses, whose store to import to.")
    try:
        config = ResponsesConfig(**(found.config or {}))
    except ValidationError as error:
        raise CannotImport(f"{path} has a wrong setting of '{found.provider_id}': {_first(error)}.") from None
    if isinstance(config.store, MemoryStore):
        raise CannotImport(f"{path} names the store 'memory', which ends with its process: choose one that keeps.")
    if not stack.storage.stores.conversations:
        raise CannotImport(f"{path} has no storage.stores.conversations, so the host has no conversations to import.")
    return config


async def _import(stack: StackConfig, config: ResponsesConfig) -> Report:
    records = open_records(config.store, backend)
    try:
        initialize_storage(stack)
        async with aclosing(_found(stack)) as found:
            return await import_conversations(Archive(records).conversations, found, config.limits.of_requests)
    finally:
        await records.close()


async def _found(stack: StackConfig) -> AsyncGenerator[Found]:
    """Every conversation of every user, from below the host's access policy."""
    service = ConversationServiceImpl(ConversationServiceConfig(config=stack), {})
    tables: Any = None
    try:
        # Makes the tables as the host's server does when it starts, and brings older ones up to date.
        await service.initialize()
        tables = service.sql_store.sql_store
        rows = (await tables.fetch_all("openai_conversations", order_by=[("id", "asc")])).data
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            items = await _items(tables, some[0]["id"], some[-1]["id"])
            for row in some:
                yield _conversation(row, items.get(row["id"], []))
    except Exception as error:
        # Each database has errors of its own.
        raise CannotImport(f"The host's conversations cannot be read ({type(error).__name__}).") from error
    finally:
        if tables:
            await tables.shutdown()


async def _items(tables: Any, first: str, last: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of the items of some conversations, by conversation, oldest first."""
    found = await tables.fetch_all(
        "conversation_items",
        # Not by an index, whose order is not the order of the rows.
        where_sql="conversation_id || '' BETWEEN :first AND :last",
        where_sql_params={"first": first, "last": last},
    )
    by_conversation: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(found.data, key=_place):
        by_conversation.setdefault(row["conversation_id"], []).append(row)
    return by_conversation


def _place(row: dict[str, Any]) -> tuple[bool, int, int]:
    """OGX numbers a conversation's items, but for those that llama-stack wrote, which are older."""
    number = row.get("sort_order")
    return number is not None, number or 0, row["created_at"]


def _conversation(row: dict[str, Any], items: Iterable[dict[str, Any]]) -> Found:
    principal = row.get("owner_principal")
    attributes, tenant = row.get("access_attributes") or {}, row.get("tenant_id") or ""
    owner = Owner(principal, attributes, tenant) if principal else ANONYMOUS
    by_id = {item["id"]: item["item_data"] for item in items}
    return Found(row["id"], owner, row["created_at"], row.get("metadata") or {}, by_id)


def _first(error: ValidationError) -> str:
    """Where the first mistake is, without the value, which may be a secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
