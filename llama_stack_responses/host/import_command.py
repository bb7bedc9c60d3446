"""The command's import of the data that the host's own services stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..commands.opened_store import CHECK_STATE
from ..config import ResponsesConfig
from ..core.setting_values import WrongConfiguration
from ..service.conversation_import import ImportImpossible, ImportReport, import_conversations
from ..service.response_import import import_responses
from ..store.archive import Archive
from ..store.factory import open_records
from ..store.tiers import with_tiers
from .configuration import listed, missing_file, read_stack, responses_config
from .import_conversations import stored_conversations
from .import_responses import stored_responses
from .keyvalue import backend
from .platform import ResponsesStoreReference, StackConfig, initialize_storage


def import_from(path: Path, was: Path | None, say: Callable[[str], None]) -> ImportReport:
    """Import the data of the stack with this configuration into the store of its responses provider.

    Args:
        was: the configuration with the entry of the builtin provider, which names the table of its responses.
        say: called with each progress line.

    Raises:
        ImportImpossible: the configuration is wrong, or a database or the store cannot be reached.
    """
    try:
        stack = read_stack(path)
        config = _responses_config(stack, path)
        table = _responses_table(read_stack(was) if was else stack)
    except WrongConfiguration as error:
        raise ImportImpossible(str(error)) from error
    return asyncio.run(_import(stack, config, table, ImportReport(say)))


def _responses_table(stack: StackConfig) -> ResponsesStoreReference:
    """Return the table of the builtin provider's responses: from its entry, or the hosts' default."""
    for each in stack.providers.get("responses", []):
        persistence = (each.config or {}).get("persistence")
        if isinstance(persistence, dict) and isinstance(persistence.get("responses"), dict):
            return _reference(persistence["responses"])
    return _reference({"table_name": "responses", "backend": "sql_default"})


def _reference(entry: dict[str, Any]) -> ResponsesStoreReference:
    try:
        return ResponsesStoreReference(**entry)
    except ValidationError as error:
        raise ImportImpossible(f"The builtin provider's persistence.responses is wrong: {listed(error)}.") from None


def _responses_config(stack: StackConfig, path: Path) -> ResponsesConfig:
    config = responses_config(stack, path, "to import into")
    if not stack.storage.stores.conversations:
        raise ImportImpossible(
            f"{path} has no storage.stores.conversations, so the host has no conversations to import."
        )
    if file := missing_file(stack, stack.storage.stores.conversations.backend):
        there = f"There is no database {file} of the host to import from"
        raise ImportImpossible(f"{there}: a new stack needs no import; of an older one, {CHECK_STATE}.")
    return config


async def _import(
    stack: StackConfig, config: ResponsesConfig, table: ResponsesStoreReference, report: ImportReport
) -> ImportReport:
    records = with_tiers(open_records(config.store, backend), config)
    archive, limits = Archive(records, retention=config.retention_seconds), config.limits.request_limits
    try:
        oldest = None if config.retention_seconds is None else await records.now() - config.retention_seconds
        initialize_storage(stack)
        async with aclosing(stored_conversations(stack)) as conversations:
            await import_conversations(archive.conversations, conversations, limits, report)
        if table.backend in stack.storage.backends:
            async with stored_responses(table) as responses:
                await import_responses(archive, responses, limits, report, oldest)
    finally:
        await records.close()
    return report
