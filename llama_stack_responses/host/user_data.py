"""The files, prompts and chats that the host keeps for users, for the commands that export and delete them.

The host's own providers do it, as the user who owns the objects and without the stack's access policy, whose rules are
for requests. Which objects a user owns is read from the host's tables: its APIs list what a user may see.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ..commands.command_error import CommandError
from ..commands.host_data import HostData
from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.setting_values import WrongConfiguration
from ..core.types import Json
from ..store.feature_store import Exported, NotDeleted, OwnedObjects
from .configuration import missing_file, read_stack
from .failures import is_missing
from .files import content_of
from .identity import HostAccess
from .import_conversations import owner_of
from .platform import (
    DeleteFileRequest,
    DeletePromptRequest,
    InferenceStore,
    InlineProviderSpec,
    ListPromptVersionsRequest,
    PromptServiceConfig,
    PromptServiceImpl,
    RetrieveFileContentRequest,
    StackConfig,
    file_provider_specs,
    initialize_storage,
    shutdown_sqlstore_backends,
)

_FILES: Final = "openai_files"
"""The table in which each of the host's providers keeps what it knows of files."""
_PROMPTS: Final = "prompts"
_VECTOR_STORES: Final = (
    "Vector stores are left as they are, with what they hold of files: delete them through /v1/vector_stores."
)
_ROWS: Final = 500
_PIECE_BYTES: Final = 3 * 2**18
"""Bytes of a file in one piece of an export: a multiple of 3, so that the pieces can be joined."""


@asynccontextmanager
async def open_user_data(path: Path, owner: Owner) -> AsyncIterator[HostData]:
    """Open the files, prompts and chats of the stack with this configuration (`OpenHostData`)."""
    try:
        stack = read_stack(path)
    except WrongConfiguration as error:
        raise CommandError(str(error), 2) from error
    initialize_storage(stack)
    try:
        found = [await _files(stack), await _prompts(stack, owner), await _chats(stack), _vector_stores(stack)]
        kinds = [each for each in found if not isinstance(each, str)]
        yield HostData(kinds, [each for each in found if isinstance(each, str) and each])
    finally:
        await shutdown_sqlstore_backends()


async def _files(stack: StackConfig) -> OwnedObjects | str:
    """Open the files. Return a sentence if they cannot be, which is empty if there are none."""
    provider = next((each for each in stack.providers.get("files", []) if each.provider_id), None)
    if provider is None:
        return ""
    spec = next((each for each in file_provider_specs() if each.provider_type == provider.provider_type), None)
    if spec is None:
        return f"The files of the provider {provider.provider_type!r} are left as they are: remove them there."
    reference: Any = provider.config.get("metadata_store") or {}
    if file := missing_file(stack, reference.get("backend", "")):
        return f"Files are left as they are: there is no database {file} of the host."
    make = "get_provider_impl" if isinstance(spec, InlineProviderSpec) else "get_adapter_impl"
    try:
        module, _, name = spec.config_class.rpartition(".")
        config = getattr(import_module(module), name)(**provider.config)
        return FilesOfOwners(await getattr(import_module(spec.module), make)(config, {}, []))
    except Exception as error:
        raise _unusable("files", error) from error


async def _prompts(stack: StackConfig, owner: Owner) -> OwnedObjects | str:
    """Open the prompts. Return a sentence if they cannot be, which is empty if there are none."""
    reference = stack.storage.stores.prompts
    if reference is None:
        return ""
    if file := missing_file(stack, reference.backend):
        return f"Prompts are left as they are: there is no database {file} of the host."
    service = PromptServiceImpl(PromptServiceConfig(config=stack), {})
    try:
        await service.initialize()
    except Exception as error:
        raise _unusable("prompts", error) from error
    if hasattr(service, "sql_store"):
        return PromptsOfOwners(service)
    if stack.server.auth or not owner.is_anonymous:
        return "Prompts are left as they are: llama-stack keeps them for all users, without an owner."
    return PromptsOfAll(service)


async def _chats(stack: StackConfig) -> OwnedObjects | str:
    """Open the chats that the host stores. Return an empty sentence if there are none."""
    reference = stack.storage.stores.inference
    if reference is None or missing_file(stack, reference.backend):
        return ""
    store = InferenceStore(reference, [])
    try:
        await store.initialize()
    except Exception as error:
        raise _unusable("chat completions", error) from error
    return ChatsOfOwners(store, reference.table_name)


def _vector_stores(stack: StackConfig) -> str:
    """Return a sentence if there may be vector stores, which only their providers can delete."""
    return _VECTOR_STORES if any(each.provider_id for each in stack.providers.get("vector_io", [])) else ""


def _unusable(what: str, error: Exception) -> CommandError:
    # The host's message may contain addresses and keys.
    reason = f"The stack's {what} cannot be read ({type(error).__name__})"
    return CommandError(f"{reason}, so nothing was done: check its provider and 'storage' in the configuration.")


async def _rows(service: Any, table: str, owner: Owner, time: str = "created_at") -> AsyncGenerator[Json]:
    """Yield an owner's rows of a table of the host, oldest first by the column `time`.

    Raises:
        CommandError: its store cannot be read.
    """
    after: dict[str, Any] = {}
    where = f"{time} > :at OR ({time} = :at AND id > :id)"
    while True:
        behind = {"where_sql": where, "where_sql_params": after} if after else {}
        try:
            page = await service.sql_store.sql_store.fetch_all(
                table,
                where={"owner_principal": owner.principal},
                order_by=[(time, "asc"), ("id", "asc")],
                limit=_ROWS,
                **behind,
            )
        except Exception as error:
            raise _unusable(f"table '{table}'", error) from error
        for row in page.data:
            if (row.get("tenant_id") or "") == owner.tenant:
                yield row
        if len(page.data) < _ROWS:
            return
        after = {"at": page.data[-1][time], "id": page.data[-1]["id"]}


async def _deleted(deletion: Any, what: str, object_id: str, owner: Owner) -> None:
    """Delete an object as its owner.

    Raises:
        ApiError: 404 if there is none.
        NotDeleted: the host failed.
    """
    try:
        with HostAccess([]).acting_for(owner, {}):
            await deletion
    except Exception as error:
        if is_missing(error, object_id):
            raise ApiError(404, f"There is no {what} {object_id!r} of this user.") from error
        raise NotDeleted(503, f"The host could not delete the {what} {object_id} ({type(error).__name__}).") from error


class FilesOfOwners:
    """The files of a stack, as `OwnedObjects`.

    Args:
        provider: the host's provider of its Files API.
    """

    name = "files"

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's files, oldest first."""
        async for row in _rows(self._provider, _FILES, owner):
            yield row["id"]

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's files, oldest first."""
        async for row in _rows(self._provider, _FILES, owner):
            fields = {name: row[name] for name in ("id", "filename", "purpose", "bytes", "created_at", "expires_at")}
            yield Exported("file", owner_of(row), fields, "content", self._content(owner, row))

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete a file and its content."""
        request = DeleteFileRequest(file_id=object_id)
        await _deleted(self._provider.openai_delete_file(request), "file", object_id, owner)

    async def _content(self, owner: Owner, row: Json) -> AsyncIterator[Json]:
        file_id: str = row["id"]
        request = RetrieveFileContentRequest(file_id=file_id)
        try:
            with HostAccess([]).acting_for(owner, {}):
                answer = await self._provider.openai_retrieve_file_content(request)
            content = await content_of(answer, row["bytes"])
        except Exception as error:
            if is_missing(error, file_id):
                return  # it expired, or is being deleted
            raise CommandError(f"The host could not read the file {file_id} ({type(error).__name__}).") from error
        for start in range(0, len(content), _PIECE_BYTES):
            yield {"base64": b64encode(content[start : start + _PIECE_BYTES]).decode()}


class PromptsOfOwners:
    """The prompts of OGX, as `OwnedObjects`.

    Args:
        service: the host's implementation of its Prompts API.
    """

    name = "prompts"

    def __init__(self, service: Any) -> None:
        self._service = service

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's prompts, oldest first."""
        seen = set[str]()  # each version has a row
        async for row in _rows(self._service, _PROMPTS, owner):
            if row["prompt_id"] not in seen:
                seen.add(row["prompt_id"])
                yield row["prompt_id"]

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's prompts, oldest first."""
        async for prompt_id in self.ids_of(owner):
            yield Exported("prompt", owner, {"id": prompt_id}, "versions", self._versions(owner, prompt_id))

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete a prompt with all its versions."""
        request = DeletePromptRequest(prompt_id=object_id)
        await _deleted(self._service.delete_prompt(request), "prompt", object_id, owner)

    async def _versions(self, owner: Owner, prompt_id: str) -> AsyncIterator[Json]:
        with HostAccess([]).acting_for(owner, {}):
            found = await self._service.list_prompt_versions(ListPromptVersionsRequest(prompt_id=prompt_id))
        for version in found.data:
            yield version.model_dump(mode="json", exclude={"prompt_id"})


class PromptsOfAll(PromptsOfOwners):
    """The prompts of llama-stack, which have no owner. In a stack without authentication, its one user owns them."""

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:  # noqa: ARG002 (there is one)
        """Yield the ids of all prompts."""
        for prompt in (await self._service.list_prompts()).data:
            yield prompt.prompt_id


class ChatsOfOwners:
    """The chats that the host stores for its own route `/v1/chat/completions`, as `OwnedObjects`.

    Args:
        store: the host's inference store.
        table: the table in which it keeps them.
    """

    name = "chat completions"

    def __init__(self, store: Any, table: str) -> None:
        self._store, self._table = store, table

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's chats, oldest first."""
        async for row in self._rows(owner):
            yield row["id"]

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's chats, oldest first."""
        async for row in self._rows(owner):
            fields = {name: row[name] for name in ("id", "created", "model", "input_messages")}
            yield Exported("chat_completion", owner_of(row), fields, "choices", _each(row["choices"]))

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete a chat."""
        whose = {"id": object_id, "owner_principal": owner.principal}
        await _deleted(self._store.sql_store.sql_store.delete(self._table, whose), "chat", object_id, owner)

    def _rows(self, owner: Owner) -> AsyncGenerator[Json]:
        return _rows(self._store, self._table, owner, "created")


async def _each(values: Iterable[Json]) -> AsyncIterator[Json]:
    for value in values:
        yield value
