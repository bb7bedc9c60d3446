"""The request body that creates a container."""

from __future__ import annotations

from typing import Any, Final

from ..errors import bad_request
from .client_tools import AUTO_CONTAINER_FIELDS
from .shapes import Location, Schema, an_object, array, integer, object_of, one_of, schema_of, string

_IDLE: Final = object_of({"anchor": one_of("last_active_at"), "minutes": integer(1)}, "minutes")

_CONTAINER: Final = object_of(
    {**AUTO_CONTAINER_FIELDS, "name": string(), "expires_after": _IDLE, "skills": array(an_object)}, "name"
)

CONTAINER_SCHEMA: Final[Schema] = schema_of(_CONTAINER)


def new_container(body: dict[str, Any]) -> tuple[str, int | None]:
    """Return the name of the new container, and after how many idle minutes it expires, if given.

    Raises:
        ApiError: 400; the body is invalid, or requests what this server's containers do not support.
    """
    checked = _CONTAINER(body, Location(""))
    for name, instead in (
        ("file_ids", "Add files with 'POST /v1/containers/{container_id}/files'."),
        ("skills", "Add what they need as files."),
    ):
        if checked.get(name):
            message = f"Unsupported parameter: '{name}' is not supported by this server. {instead}"
            raise bad_request(message, name, "unsupported_parameter")
    if checked.get("network_policy", {"type": "disabled"})["type"] != "disabled":
        message = "Containers of this server have no network: omit 'network_policy'."
        raise bad_request(message, "network_policy", "unsupported_value")
    return checked["name"], checked.get("expires_after", {}).get("minutes")
