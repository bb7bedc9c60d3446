"""The routes under `/v1/containers`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from python_multipart.multipart import parse_options_header

from ....core.errors import ApiError, bad_request
from ....items.listed_items import page_after
from ....wire.http_responses import JsonResponse
from ....wire.openapi import (
    BINARY,
    PAGING,
    TEXT,
    TIME,
    TYPED,
    WHOLE,
    constant,
    deleted,
    described,
    one_of,
    page,
    whole,
)
from ....wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from ....wire.route_admission import RouteAdmission
from ..file_answers import FileInBlocks
from ..multipart import uploaded
from ..network.policy import NetworkPolicy, PolicyRefused
from .access import ContainerAccess, FileNotCopied, SkillNotAdded
from .container_bodies import (
    CONTAINER_SCHEMA,
    COPY_SCHEMA,
    copied_file,
    new_container,
)
from .entries import (
    ContainerEntry,
    ContainerFile,
    NoContainer,
    TooManyContainers,
    delete_file,
    files,
    open_file,
    write_file,
)

_MINUTE_SECONDS: Final = 60.0

_CONTAINER: Final = whole(
    id=TEXT,
    object=constant("container"),
    created_at=TIME,
    name=TEXT,
    status=TEXT,
    last_active_at=TIME,
    expires_after=whole(anchor=constant("last_active_at"), minutes=WHOLE),
    network_policy=TYPED,
)

_FILE: Final = whole(
    id=TEXT,
    object=constant("container.file"),
    bytes=WHOLE,
    container_id=TEXT,
    created_at=TIME,
    path=TEXT,
    source=one_of("user", "assistant"),
)

_NEW_FILE: Final = whole(file=BINARY)


def containers_router(access: ContainerAccess, limits: RouteAdmission) -> APIRouter:
    """Return the routes for the containers of the user of a request."""
    routes = _Routes(access, limits)
    router = APIRouter(prefix="/v1/containers", tags=["Containers"], route_class=routes_within(limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    example = {"name": "notebook", "expires_after": {"anchor": "last_active_at", "minutes": 20}}
    created = described(_CONTAINER, body=CONTAINER_SCHEMA, example=example)
    add("POST", "", routes.create, "Create a container", created)
    add("GET", "", routes.list, "List containers", described(page(_CONTAINER), query={**PAGING, "name": TEXT}))
    add("GET", "/{container_id}", routes.retrieve, "Retrieve a container", described(_CONTAINER))
    add("DELETE", "/{container_id}", routes.delete, "Delete a container", described(deleted("container.deleted")))
    _add_files(add, routes)
    add_fallback(router)
    return router


def _add_files(add: Callable[[str, str, Handler, str, dict[str, Any]], None], routes: _Routes) -> None:
    files, file = "/{container_id}/files", "/{container_id}/files/{file_id}"
    put = described(_FILE, body=COPY_SCHEMA, example={"file_id": "file-6F2ksmvXxt4VdoqmHRw6kL"}, form=_NEW_FILE)
    add("POST", files, routes.create_file, "Put a file into a container", put)
    add("GET", files, routes.list_files, "List a container's files", described(page(_FILE), query=PAGING))
    add("GET", file, routes.retrieve_file, "Retrieve a container's file", described(_FILE))
    inside = described(BINARY, media="application/octet-stream")
    gone = described(deleted("container.file.deleted"))
    add("DELETE", file, routes.delete_file, "Delete a container's file", gone)
    add("GET", f"{file}/content", routes.content, "Retrieve the content of a container's file", inside)


class _Routes:
    def __init__(self, access: ContainerAccess, limits: RouteAdmission) -> None:
        self._access = access
        self._limits = limits

    async def create(self, request: Request) -> Response:
        new = new_container(await self._limits.bodies.json(request))
        idle_seconds = None if new.minutes is None else new.minutes * _MINUTE_SECONDS
        try:
            policy = self._access.networks.accept(new.network_policy)
            entry = await self._access.create(
                new.file_ids, new.skills, name=new.name, idle_seconds=idle_seconds, policy=policy
            )
        except PolicyRefused as error:
            raise bad_request(str(error), error.param("network_policy"), error.code) from error
        except TooManyContainers as error:
            raise ApiError(429, str(error), code="rate_limit_exceeded", retry_after=60) from error
        except SkillNotAdded as error:
            code = "invalid_value" if error.status == 400 else None
            param = f"skills[{error.number}].{error.field}"
            raise ApiError(error.status, str(error), code=code, param=param) from error
        except FileNotCopied as error:
            param, cause = f"file_ids[{error.number}]", error.cause
            raise ApiError(
                cause.status, str(error), code=cause.code, param=param, retry_after=cause.retry_after
            ) from error
        return JsonResponse(_container(entry))

    async def list(self, request: Request) -> Response:
        name = Query(request).text("name")
        found = [each for each in self._access.owned() if name in (None, each.name)]
        return _page(request, [_container(each) for each in found])

    async def retrieve(self, container_id: str) -> Response:
        return JsonResponse(_container(self._find(container_id)))

    async def delete(self, container_id: str) -> Response:
        await self._access.containers.end(self._find(container_id).id)
        return JsonResponse({"id": container_id, "object": "container.deleted", "deleted": True})

    async def create_file(self, container_id: str, request: Request) -> Response:
        entry = self._find(container_id)
        if _is_json(request):
            file = await self._access.copy(entry, copied_file(await self._limits.bodies.json(request)))
        else:
            async with uploaded(request, self._limits.bodies, self._limits.request_bytes) as upload:
                file = await write_file(entry, upload.name, upload.content)
        return JsonResponse(_file(entry, file))

    async def list_files(self, container_id: str, request: Request) -> Response:
        entry = self._find(container_id)
        newest_first = sorted(await files(entry), key=lambda each: each.written_at, reverse=True)
        return _page(request, [_file(entry, each) for each in newest_first])

    async def retrieve_file(self, container_id: str, file_id: str) -> Response:
        entry = self._find(container_id)
        return JsonResponse(_file(entry, await self._find_file(entry, file_id)))

    async def delete_file(self, container_id: str, file_id: str) -> Response:
        entry = self._find(container_id)
        if not await delete_file(entry, await self._find_file(entry, file_id)):
            raise _no_file(file_id)
        return JsonResponse({"id": file_id, "object": "container.file.deleted", "deleted": True})

    async def content(self, container_id: str, file_id: str, request: Request) -> Response:
        entry = self._find(container_id)
        self._limits.hold_download(request.scope)
        file = await self._find_file(entry, file_id)
        opened = await open_file(entry, file)
        if opened is None:
            raise _no_file(file_id)
        name = re.sub("[^0-9A-Za-z._-]", "_", file.name)
        headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
        return FileInBlocks(*opened, headers)

    def _find(self, container_id: str) -> ContainerEntry:
        try:
            return self._access.find(container_id)
        except NoContainer as error:
            raise ApiError(404, str(error), param="container_id") from error

    async def _find_file(self, entry: ContainerEntry, file_id: str) -> ContainerFile:
        for file in await files(entry):
            if file.id == file_id:
                return file
        raise _no_file(file_id)


def _is_json(request: Request) -> bool:
    return parse_options_header(request.headers.get("content-type", ""))[0] == b"application/json"


def _page(request: Request, data: list[dict[str, Any]]) -> Response:
    """Return the requested page of `data`, which holds all entries, newest first."""
    query = Query(request)
    if query.order() == "asc":
        data.reverse()
    page = page_after(data, query.text("after"), query.limit())
    return page_of(page.data, has_more=page.has_more)


def _no_file(file_id: str) -> ApiError:
    return ApiError(404, f"No file with id '{file_id}' is in this container.", param="file_id")


def _container(entry: ContainerEntry) -> dict[str, Any]:
    """Return a container in the form of `openai.types.ContainerCreateResponse`."""
    return {
        "id": entry.id,
        "object": "container",
        "created_at": entry.created_at,
        "name": entry.name,
        "status": "running",
        "last_active_at": int(entry.last_active_at),
        "expires_after": {"anchor": "last_active_at", "minutes": max(1, int(entry.idle_seconds / _MINUTE_SECONDS))},
        "network_policy": _policy(entry.policy),
    }


def _policy(policy: NetworkPolicy | None) -> dict[str, Any]:
    return {"type": "allowlist", "allowed_domains": list(policy.domains)} if policy else {"type": "disabled"}


def _file(entry: ContainerEntry, file: ContainerFile) -> dict[str, Any]:
    """Return a file in the form of `openai.types.containers.FileListResponse`."""
    return {
        "id": file.id,
        "object": "container.file",
        "bytes": file.bytes,
        "container_id": entry.id,
        "created_at": file.written_at // 10**9,
        "path": file.path,
        "source": "user" if file.by_user else "assistant",
    }
