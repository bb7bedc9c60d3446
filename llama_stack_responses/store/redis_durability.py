"""Whether a Redis or Valkey server keeps what was committed, by what it says of itself.

`INFO` says it all, which managed services permit, unlike `CONFIG`. A snapshot (`save`) is not enough: it loses what was
committed after it. The `volatile-...` policies evict only keys that expire, and those of records do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INFO = ("memory", "persistence")
"""The sections of `INFO` that are needed."""


def losses_of(info: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what `Configured.losses` does, by `restart` and `eviction`, from the fields of `INFO`."""
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
