"""Writes to the audit log what a command does with what belongs to users."""

from __future__ import annotations

import getpass
import socket

from ..config import ResponsesConfig
from ..core.owner import Owner
from ..store.audit_log import Act, AuditLog, machine_actor
from ..store.records import Records


async def record_command(
    records: Records, settings: ResponsesConfig, act: str, object_id: str = "", owner: Owner | None = None
) -> None:
    """Write an act of the user who runs a command, before it is done, if the setting `roles` names operators.

    Args:
        act: what it is, such as `owner.deleted`.
        object_id: the id of the object.
        owner: its owner.
    """
    if not settings.roles.any:
        return
    actor = machine_actor(_user(), socket.gethostname())
    await AuditLog(records, settings.roles.audit_seconds).write(Act(act, actor, "allowed", object_id, owner))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return ""
