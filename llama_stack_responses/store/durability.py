"""Whether a server of PostgreSQL, or of Redis or Valkey, keeps what was committed, by what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

POSTGRES_SETTINGS: Final = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit
"""
"""Reads them. `synchronous_commit` may be set for a user or a database: what our own connections have counts."""

REDIS_INFO: Final = ("memory", "persistence")
"""The sections of `INFO` that are needed. It says all, and managed services permit it, unlike `CONFIG`."""

_LOSSES: Final = {
    "fsync": "it may lose or damage everything in a crash of its machine: set 'fsync = on'",
    "full_page_writes": "its tables may be damaged in a crash of its machine: set 'full_page_writes = on'",
    "synchronous_commit": "it forgets the last responses in a crash: set 'synchronous_commit = on'",
}
"""What happens if a setting is off."""


def losses_of_postgres(settings: dict[str, str]) -> dict[str, str]:
    """Return what `Configured.losses` does, from the values of these settings."""
    return {name: loss for name, loss in _LOSSES.items() if settings[name] == "off"}


def losses_of_redis(info: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what `Configured.losses` does, by `restart` and `eviction`, from the fields of `INFO`.

    A snapshot (`save`) is not enough: it loses what was committed after it. The `volatile-...` policies evict only keys
    that expire, and those of records do not.
    """
    if "aof_enabled" not in info or "maxmemory_policy" not in info:
        return None
    losses = {}
    if not info["aof_enabled"]:
        losses["restart"] = "it forgets responses when it restarts: set 'appendonly yes'"
    policy = info["maxmemory_policy"]
    if info.get("maxmemory") and policy.startswith("allkeys"):
        losses["eviction"] = (
            f"it drops responses when its memory is full: set 'maxmemory-policy noeviction' instead of '{policy}'"
        )
    return losses
