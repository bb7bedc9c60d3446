"""The command `partitions`."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from ...commands.opened_store import with_store
from ...commands.tables import print_rows
from ...config import ResponsesConfig
from ...core.types import Json
from ...store.records import Records
from .partitions_view import PartitionsView

_PARTITIONS: Final = {
    "partition": "PARTITION",
    "slot": "SLOT",
    "primary": "PRIMARY",
    "replicas": "REPLICAS",
    "state": "STATE",
    "rows": "ROWS",
    "bytes": "BYTES",
    "waiting": "WAITING",
    "held": "HELD",
    "worker": "WORKER",
}
_SERVERS: Final = {
    "server": "SERVER",
    "state": "STATE",
    "partitions": "PARTITIONS",
    "bytes": "BYTES IN ALL",
    "free": "FREE",
}


def partitions(arguments: Namespace) -> None:
    """Run `partitions`: where each partition is, how full it is, what waits there, and who serves it."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        found, servers = await PartitionsView(records).read()
        rows = found if arguments.json else list(map(_row, found))
        print_rows(rows, _PARTITIONS, as_json=arguments.json)
        if not arguments.json:
            print()
        print_rows(servers, _SERVERS, as_json=arguments.json)

    with_store(arguments, work)


def _row(partition: Json) -> Json:
    replicas = partition["replicas"]
    return partition | {"replicas": None if replicas is None else ", ".join(replicas) or "none"}
