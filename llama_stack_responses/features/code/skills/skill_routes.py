"""The routes under `/v1/skills`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ....core.errors import bad_request
from ....core.shapes import Schema, any_of
from ....wire.http_responses import JsonResponse
from ....wire.openapi import (
    BINARY,
    PAGING,
    TEXT,
    TIME,
    YES_OR_NO,
    an_id,
    constant,
    deleted,
    described,
    page,
    whole,
)
from ....wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from ....wire.route_admission import RouteAdmission
from ..file_answers import FileInBlocks
from ..multipart import FormShape, SentForm, sent_form
from .service import Download, Skills, UploadedFile
from .shapes import UPDATE_SCHEMA

_ARCHIVE: Final = described(BINARY, media="application/zip")
_FORM: Final = FormShape("files", 500, frozenset({"default"}))

_SKILL: Final = whole(
    id=an_id("skill"),
    object=constant("skill"),
    created_at=TIME,
    name=TEXT,
    description=TEXT,
    default_version=TEXT,
    latest_version=TEXT,
)

_VERSION: Final = whole(
    id=an_id("skillver"),
    object=constant("skill.version"),
    created_at=TIME,
    name=TEXT,
    description=TEXT,
    skill_id=an_id("skill"),
    version=TEXT,
)

_NEW_SKILL: Final = whole(files=any_of({"type": "array", "items": BINARY}, BINARY))
_NEW_VERSION: Final[Schema] = {**_NEW_SKILL, "properties": {**_NEW_SKILL["properties"], "default": YES_OR_NO}}


def skills_router(skills: Skills, limits: RouteAdmission, archive_bytes: int) -> APIRouter:
    """Return the routes for these skills, whose files have at most `archive_bytes` together."""
    routes = _Routes(skills, limits, archive_bytes)
    router = APIRouter(prefix="/v1/skills", tags=["Skills"], route_class=routes_within(limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    one, versions, version = "/{skill_id}", "/{skill_id}/versions", "/{skill_id}/versions/{version}"
    add("POST", "", routes.create, "Create a skill", described(_SKILL, form=_NEW_SKILL))
    add("GET", "", routes.list, "List skills", described(page(_SKILL), query=PAGING))
    add("GET", one, routes.retrieve, "Retrieve a skill", described(_SKILL))
    updated = described(_SKILL, body=UPDATE_SCHEMA, example={"default_version": "2"})
    add("POST", one, routes.update, "Set a skill's default version", updated)
    add("DELETE", one, routes.delete, "Delete a skill with its versions", described(deleted("skill.deleted")))
    add("GET", f"{one}/content", routes.content, "Retrieve the archive of a skill's default version", _ARCHIVE)
    created = described(_VERSION, form=_NEW_VERSION)
    add("POST", versions, routes.create_version, "Create a version of a skill", created)
    listed = described(page(_VERSION), query=PAGING)
    add("GET", versions, routes.list_versions, "List a skill's versions", listed)
    add("GET", version, routes.retrieve_version, "Retrieve a version of a skill", described(_VERSION))
    gone = described(deleted("skill.version.deleted"))
    add("DELETE", version, routes.delete_version, "Delete a version of a skill", gone)
    add("GET", f"{version}/content", routes.version_content, "Retrieve the archive of a version", _ARCHIVE)
    add_fallback(router)
    return router


class _Routes:
    def __init__(self, skills: Skills, limits: RouteAdmission, archive_bytes: int) -> None:
        self._skills = skills
        self._limits = limits
        self._archive_bytes = archive_bytes

    async def create(self, request: Request) -> Response:
        form = await self._form(request)
        return JsonResponse(await self._skills.create(_files(form)))

    async def retrieve(self, skill_id: str) -> Response:
        return JsonResponse(await self._skills.retrieve(skill_id))

    async def list(self, request: Request) -> Response:
        query = Query(request)
        found = await self._skills.list(**query.paging())
        return page_of(found.data, has_more=found.has_more)

    async def update(self, skill_id: str, request: Request) -> Response:
        body = await self._limits.bodies.json(request)
        return JsonResponse(await self._skills.update(skill_id, body))

    async def delete(self, skill_id: str) -> Response:
        return JsonResponse(await self._skills.delete(skill_id))

    async def content(self, skill_id: str, request: Request) -> Response:
        self._limits.hold_download(request.scope)
        return _archive(await self._skills.content(skill_id))

    async def create_version(self, skill_id: str, request: Request) -> Response:
        form = await self._form(request)
        return JsonResponse(await self._skills.create_version(skill_id, _files(form), default=_default(form)))

    async def list_versions(self, skill_id: str, request: Request) -> Response:
        query = Query(request)
        found = await self._skills.list_versions(skill_id, **query.paging())
        return page_of(found.data, has_more=found.has_more)

    async def retrieve_version(self, skill_id: str, version: str) -> Response:
        return JsonResponse(await self._skills.retrieve_version(skill_id, version))

    async def delete_version(self, skill_id: str, version: str) -> Response:
        return JsonResponse(await self._skills.delete_version(skill_id, version))

    async def version_content(self, skill_id: str, version: str, request: Request) -> Response:
        self._limits.hold_download(request.scope)
        return _archive(await self._skills.content(skill_id, version))

    async def _form(self, request: Request) -> SentForm:
        return await sent_form(request, self._limits.bodies, self._archive_bytes, _FORM)


def _files(form: SentForm) -> list[UploadedFile]:
    return [UploadedFile(*file) for file in form.files]


def _default(form: SentForm) -> bool:
    value = form.fields.get("default", "false").lower()
    if value not in ("true", "false"):
        raise bad_request("Invalid value for 'default': expected 'true' or 'false'.", "default", "invalid_value")
    return value == "true"


def _archive(download: Download) -> Response:
    headers = {
        "content-type": "application/zip",
        "content-disposition": f'attachment; filename="{download.name}"',
        "x-content-type-options": "nosniff",
    }
    return FileInBlocks(download.file, download.bytes, headers)
