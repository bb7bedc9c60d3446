"""The database servers of the stores that have one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey

SERVERS: Final[Mapping[str, Callable[[Path], DatabaseServer]]] = {"redis": Valkey, "postgres": Postgres}
"""For each kind of store that needs a server: how to prepare one with its data in a folder."""


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[DatabaseServer | None]:
    """Run the server of a kind of store, with its data in `folder`; None for a kind that has no server."""
    if kind not in SERVERS:
        yield None
        return
    with SERVERS[kind](folder) as server:
        yield server
