"""The skills of a new container: a request contains them as zip archives, or refers to stored ones."""

from __future__ import annotations

from typing import Any, Final

from ....core.ids import check_id
from ....core.shapes import (
    Check,
    Location,
    Schema,
    any_of,
    array,
    data,
    integer,
    invalid,
    object_of,
    one_of,
    schema_of,
    string,
    tagged,
    takes,
)

_PREFIX: Final = "skill_"
"""The prefix of ids of skills."""

MAX_SKILLS: Final = 32
"""Maximum number of skills of one container. The function that the model sees lists them."""

NAME: Final = "[a-zA-Z0-9_-]+"
"""The form of a name: a folder of the container has it."""
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1_024

_ARCHIVE: Final = object_of({"media_type": one_of("application/zip"), "data": data}, "media_type", "data")

_INLINE: Final = object_of(
    {
        "name": string(1, MAX_NAME, NAME),
        "description": string(1, MAX_DESCRIPTION),
        "source": tagged({"base64": _ARCHIVE}),
    },
    "name",
    "description",
    "source",
)

_DIGITS: Final = "[1-9][0-9]{0,5}"
_NUMBER: Final = integer(1, 999_999)


def _version(name: Check) -> Check:
    """Return a check for a version: its number, also as an integer, or another string that `name` accepts."""

    @takes(any_of(schema_of(name), schema_of(_NUMBER)))
    def check(value: Any, at: Location) -> str:
        return str((name if isinstance(value, str) else _NUMBER)(value, at))

    return check


_VERSION_NUMBER: Final = string(1, 6, _DIGITS)


@takes({"type": "string", "pattern": "^skill_[0-9a-zA-Z_-]{1,64}$"})
def _skill_id(value: Any, at: Location) -> str:
    return check_id(_PREFIX, string()(value, at), at.path)


_REFERENCE: Final = object_of(
    {"skill_id": _skill_id, "version": _version(string(1, 6, f"(?:latest|{_DIGITS})"))}, "skill_id"
)

_SKILL_LIST: Final[Check] = array(tagged({"inline": _INLINE, "skill_reference": _REFERENCE}), high=MAX_SKILLS)


@takes(schema_of(_SKILL_LIST))
def skills(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check the `skills` of a new container; the names of those that it contains must be distinct."""
    checked: list[dict[str, Any]] = _SKILL_LIST(value, at)
    names = set[str]()
    for position, skill in enumerate(checked):
        name = skill.get("name")
        if name in names:
            raise invalid(at.index(position).key("name"), f"another skill has the name '{name}' already.")
        names |= {name} if name else set()
    return checked


def check_skill_id(skill_id: str) -> None:
    """Raise a 400 unless the `skill_id` of a path has the form of one."""
    check_id(_PREFIX, skill_id, "skill_id")


_UPDATE: Final = object_of({"default_version": _version(_VERSION_NUMBER)}, "default_version")

UPDATE_SCHEMA: Final[Schema] = schema_of(_UPDATE)


def default_version(body: dict[str, Any]) -> int:
    """Return the number of the version that a request makes the default one of its skill.

    Raises:
        ApiError: 400; the body is invalid.
    """
    return int(_UPDATE(body, Location(""))["default_version"])


def version_number(version: str) -> int:
    """Return the number that a version has in a path.

    Raises:
        ApiError: 400; it is not a number.
    """
    return int(_VERSION_NUMBER(version, Location("version")))
