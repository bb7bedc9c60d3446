"""The command's import of the data that the host's own services stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from llama_stack_responses.config import MemoryStore, ResponsesConfig
from llama_stack_responses.service.conversation_import import CannotImport, Report, import_conversations
from llama_stack_responses.service.response_import import import_responses
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.factory import open_records

from .conversations import stored_conversations
from .keyvalue import backend
from .platform import ResponsesStoreReference, StackConfig, initialize_storage, parse_and_maybe_upgrade_config
from .stored_responses import stored_responses


def import_from(path: Path, was: Path | None, say: Callable[[str], None]) -> Report:
    """Import the data of the stack with this configuration into the store of its responses provider.

    Args:
        was: the configuration with the entry of the builtin provider, which names the table of its responses.
        say: called with each progress line.

    Raises:
        CannotImport: the configuration is wrong, or a database or the store cannot be reached.
    """
    stack = _read_stack(path)
    config = _responses_config(stack, path)
    table = _responses_table(_read_stack(was) if was else stack)
    return asyncio.run(_import(stack, config, table, Report(say)))


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
        raise CannotImport(f"The builtin provider's persistence.responses is wrong: {_first(error)}.") from None


def _read_stack(path: Path) -> StackConfig:
    try:
        stack: StackConfig = parse_and_maybe_upgrade_config(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise CannotImport(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        raise CannotImport(f"{path} is not a stack's configuration: {_first(error)}.") from None
    except yaml.YAMLError:
        # The error's message quotes the file, which may contain a secret.
        raise CannotImport(f"{path} is not a stack's configuration: it is not YAML.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The host's message may have several lines.
        reason = " ".join(str(error).split()).rstrip(".")
        raise CannotImport(f"{path} is not a stack's configuration: {reason}.") from error
    return stack


def _responses_config(stack: StackConfig, path: Path) -> ResponsesConfig:
    providers = stack.providers.get("responses", [])
    found = next((each for each in providers if each.provider_type == "inline::kv"), None)
    if found is None:
        raise CannotImport(f"{path} has no provider 'inline::kv' under providers.responses to import into.")
    try:
        config = ResponsesConfig(**(found.config or {}))
    except ValidationError as error:
        raise CannotImport(f"{path} has a wrong setting of '{found.provider_id}': {_first(error)}.") from None
    if isinstance(config.store, MemoryStore):
        raise CannotImport(
            f"{path} names the store 'memory', which is lost when the process ends: choose a persistent store."
        )
    if not stack.storage.stores.conversations:
        raise CannotImport(f"{path} has no storage.stores.conversations, so the host has no conversations to import.")
    return config


async def _import(
    stack: StackConfig, config: ResponsesConfig, table: ResponsesStoreReference, report: Report
) -> Report:
    records = open_records(config.store, backend)
    archive, limits = Archive(records, retention=config.retention_seconds), config.limits.of_requests
    oldest = None if config.retention_seconds is None else time.time() - config.retention_seconds
    try:
        initialize_storage(stack)
        async with aclosing(stored_conversations(stack)) as conversations:
            await import_conversations(archive.conversations, conversations, limits, report)
        if table.backend in stack.storage.backends:
            async with stored_responses(table) as responses:
                await import_responses(archive, responses, limits, report, oldest)
    finally:
        await records.close()
    return report


def _first(error: ValidationError) -> str:
    """Return the location and message of the first error, without the value, which may be a secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
