"""The skills of a new container, which a request contains as zip archives."""

from __future__ import annotations

from typing import Any, Final

from ..errors import bad_request
from .shapes import Check, Location, array, data, invalid, object_of, one_of, schema_of, string, tagged, takes

MAX_SKILLS: Final = 32
"""Maximum number of skills of one container. The function that the model sees lists them."""

_ARCHIVE: Final = object_of({"media_type": one_of("application/zip"), "data": data}, "media_type", "data")

_INLINE: Final = object_of(
    {
        "name": string(1, 64, "[a-zA-Z0-9_-]+"),  # a folder of the container has this name
        "description": string(1, 1024),
        "source": tagged({"base64": _ARCHIVE}),
    },
    "name",
    "description",
    "source",
)

_KNOWN_SKILL: Final = tagged({"inline": _INLINE})


@takes(schema_of(_KNOWN_SKILL))
def _skill(value: Any, at: Location) -> dict[str, Any]:
    """Check a skill."""
    if isinstance(value, dict) and value.get("type") == "skill_reference":
        message = (
            "Unsupported skill type 'skill_reference' on this server, which has no '/v1/skills'. Send the skill "
            "inline: {type: inline, name, description, source: {type: base64, media_type: application/zip, data}}."
        )
        raise bad_request(message, at.key("type").path, "unsupported_value")
    skill: dict[str, Any] = _KNOWN_SKILL(value, at)
    return skill


_SKILL_LIST: Final[Check] = array(_skill, high=MAX_SKILLS)


@takes(schema_of(_SKILL_LIST))
def skills(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check the `skills` of a new container; their names must be distinct."""
    checked: list[dict[str, Any]] = _SKILL_LIST(value, at)
    names = set[str]()
    for position, skill in enumerate(checked):
        if skill["name"] in names:
            raise invalid(at.index(position).key("name"), f"another skill has the name '{skill['name']}' already.")
        names.add(skill["name"])
    return checked
