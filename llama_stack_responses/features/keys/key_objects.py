"""Keys as commands and routes show them: `organization.admin_api_key` of OpenAI, and what it does not have."""

from __future__ import annotations

from ...core.types import Json
from ...store.access_keys import AccessKey


def key_object(key: AccessKey, last_used_at: int | None, now: float) -> Json:
    """Return a key, without anything by which its token could be guessed.

    Args:
        last_used_at: when it was used last, in seconds since the epoch; None if it was not.
        now: seconds since the epoch.
    """
    return {
        "object": "organization.admin_api_key",
        "id": key.id,
        "name": key.name,
        "redacted_value": key.redacted,
        "created_at": key.created_at,
        "last_used_at": last_used_at,
        "expires_at": key.expires_at,
        "owner": _owner_object(key),
        "status": key.status(now),
        "revoked_at": key.revoked_at,
        "team": key.team or None,
        "roles": list(key.roles),
        "models": None if key.models is None else list(key.models),
        "limits": dict(key.limits),
        "older_token_expires_at": max((each.expires_at for each in key.secrets if each.expires_at), default=None),
    }


def belongs_to(key: AccessKey, owner: str | None, team: str | None) -> bool:
    """Return whether a key is of this owner and this team; None stands for any."""
    return owner in (None, key.owner.principal) and team in (None, key.team)


def exported(key: AccessKey) -> Json:
    """Return the fields of a key in an export of what its owner has."""
    left_out = ("object", "owner", "last_used_at", "status", "older_token_expires_at")
    return {name: value for name, value in key_object(key, None, 0).items() if name not in left_out}


def _owner_object(key: AccessKey) -> Json:
    name = key.owner.principal
    fields = {"object": "organization.user", "type": "user", "id": name, "name": name, "role": "owner"}
    return fields | {"created_at": key.created_at} | ({"tenant": key.owner.tenant} if key.owner.tenant else {})
