"""Whether a PostgreSQL server keeps what was committed, by the settings of a connection.

`synchronous_commit` may be set for a user or a database: the settings of our own connections count.
"""

from __future__ import annotations

from typing import Final

SETTINGS: Final = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit
"""

_LOSSES: Final = {
    "fsync": "it may lose or damage everything in a crash of its machine: set 'fsync = on'",
    "full_page_writes": "its tables may be damaged in a crash of its machine: set 'full_page_writes = on'",
    "synchronous_commit": "it forgets the last responses in a crash: set 'synchronous_commit = on'",
}
"""What happens if a setting is off."""


def losses_of(settings: dict[str, str]) -> dict[str, str]:
    """Return what `Configured.losses` does, from the values of these settings."""
    return {name: loss for name, loss in _LOSSES.items() if settings[name] == "off"}
