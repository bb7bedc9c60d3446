"""The settings of a new container, and the request bodies that create one, and copy a file into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ....core.shapes import (
    Check,
    Location,
    Schema,
    array,
    integer,
    object_of,
    one_of,
    schema_of,
    string,
)
from ..network.shapes import NETWORK_POLICY
from ..skills.shapes import skills

_FILE_ID: Final = string(1, 512)

_FIELDS: Final[Mapping[str, Check]] = {
    "file_ids": array(_FILE_ID, high=50),
    "memory_limit": one_of("1g", "4g", "16g", "64g"),
    "network_policy": NETWORK_POLICY,
    "skills": skills,
}

AUTO_CONTAINER: Final = object_of(_FIELDS)
"""Check of the settings of a container that is created for a tool."""

_IDLE: Final = object_of({"anchor": one_of("last_active_at"), "minutes": integer(1)}, "minutes")

_CONTAINER: Final = object_of({**_FIELDS, "name": string(), "expires_after": _IDLE}, "name")

_COPY: Final = object_of({"file_id": _FILE_ID}, "file_id")

CONTAINER_SCHEMA: Final[Schema] = schema_of(_CONTAINER)

COPY_SCHEMA: Final[Schema] = schema_of(_COPY)


@dataclass(frozen=True, slots=True)
class NewContainer:
    """A container that a client creates.

    Attributes:
        minutes: it expires after this number of minutes without use; None for the server's setting.
        file_ids: uploaded files that are copied into it.
        skills: skills that are put into it, as the request declares them.
        network_policy: its network, as the request declares it.
    """

    name: str
    minutes: int | None
    file_ids: tuple[str, ...]
    skills: tuple[dict[str, Any], ...] = ()
    network_policy: dict[str, Any] | None = field(default=None, repr=False)


def new_container(body: dict[str, Any]) -> NewContainer:
    """Return the container that the body describes.

    Raises:
        ApiError: 400; the body is invalid.
    """
    checked = _CONTAINER(body, Location("", refuse_unknown=True))
    minutes = checked.get("expires_after", {}).get("minutes")
    file_ids, skills = (tuple(checked.get(name, ())) for name in ("file_ids", "skills"))
    return NewContainer(checked["name"], minutes, file_ids, skills, checked.get("network_policy"))


def copied_file(body: dict[str, Any]) -> str:
    """Return the id of the uploaded file that is copied into a container.

    Raises:
        ApiError: 400; the body is invalid.
    """
    file_id: str = _COPY(body, Location("", refuse_unknown=True))["file_id"]
    return file_id
