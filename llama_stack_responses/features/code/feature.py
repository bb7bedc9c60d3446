"""The containers of a stack that runs code, and the skills that its users store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import APIRouter

from ...feature import Feature, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.decoder import Decoder
from ...wire.route_admission import RouteAdmission
from .settings import CODE_INTERPRETER, STORED_SKILLS
from .skills.declared import SkillReader, with_versions
from .skills.service import Skills
from .skills.skill_routes import skills_router
from .skills.store import SkillQuota, SkillStore


def open_feature(stack: Stack) -> Feature:
    """Return skills, and the containers with their tools; without a folder for containers, skills only.

    Raises:
        WrongConfiguration: bubblewrap or a package is missing, or the configured control group cannot be used.
    """
    store = SkillStore(stack.records, Decoder(stack.config.limits.decoding_bytes))
    reader = SkillReader(stack.contents, stack.current_user, store)
    fill, skill_routes = partial(with_versions, reader), partial(_skill_routes, stack, store, reader)
    settings = CODE_INTERPRETER.of(stack.config)
    if settings is None:
        return Feature(routes=[skill_routes], fill=fill)
    from .containers.opening import open_code

    code = open_code(stack, settings, reader)
    return replace(code, routes=[*code.routes, skill_routes], fill=fill)


def _skill_routes(
    stack: Stack, store: SkillStore, reader: SkillReader, impl: OpenAIResponsesImpl, limits: RouteAdmission
) -> APIRouter:
    settings = STORED_SKILLS.of(stack.config)
    skills = Skills(
        store,
        reader,
        stack.pool,
        impl.access,
        SkillQuota(settings.per_user, settings.versions, settings.bytes_per_user),
        impl.large_work,
        impl.intervals,
        clock=impl.clock,
    )
    return skills_router(skills, limits, settings.archive_bytes)
