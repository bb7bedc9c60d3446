"""The store that a command works on."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from ..config import ResponsesConfig
from ..config.stores import ClusterStore, HostStore, OtherStore, PostgresStore, RedisStore, Store
from ..core.errors import ApiError
from ..logs import print_no_lines
from ..store.records import AWAY, Persistent, Records
from .command_error import CommandError
from .interrupts import end_in_order

CHECK_STATE: Final = "check STATE_DIR, and the user that runs the server"

_ADDRESSES: Final[dict[type[Store], str]] = {
    RedisStore: " Check that it runs, and REDIS_URL, or the url in 'store'.",
    ClusterStore: " Check that its nodes run, and REDIS_URL, or the url in 'store'.",
    PostgresStore: " Check that it runs, and DATABASE_URL, or the url in 'store'.",
}
"""What an operator checks if the store's server may not run, or not at this address."""

type Work = Callable[[Records, ResponsesConfig], Awaitable[None]]


class OpenStore(Protocol):
    """Opens the store that a stack's configuration names, and returns it with the settings."""

    def __call__(self, config: Path, *, new: bool) -> tuple[Records, ResponsesConfig]:
        """Open the store, within the event loop that uses it.

        Args:
            new: whether a store that does not exist is created.

        Raises:
            CommandError: the configuration is wrong, or the store does not exist.
        """
        ...


def with_store(arguments: Namespace, work: Work, *, new: bool = False) -> None:
    """Open the store of a command with the option `--config`, and do this work on it.

    Args:
        arguments: those of the command; the program adds its `OpenStore` as `open_store`.
        new: whether a store that does not exist is created.

    Raises:
        CommandError: the configuration is wrong, or the store does not answer.
    """
    config: Path = arguments.config
    if not config.is_file():
        raise CommandError(f"There is no file {config}: name the stack's configuration with --config.", 2)
    # The command's own error says what failed.
    print_no_lines()
    end_in_order()
    asyncio.run(_with_store(config, arguments.open_store, work, new=new))


async def _with_store(config: Path, open_store: OpenStore, work: Work, *, new: bool) -> None:
    records, settings = open_store(config, new=new)
    try:
        # Reading a wrong database would find nothing and make a store there, and a backup of it would be empty.
        if not new and isinstance(records, Persistent) and not await records.exists():
            raise CommandError(f"There is no {_description(settings.store)}.")
        await work(records, settings)
    except ApiError as error:
        check = _ADDRESSES.get(type(settings.store), "") if error.message in AWAY else ""
        raise CommandError(f"{error.message}{check}") from error
    finally:
        await records.close()


def _description(store: Store) -> str:
    """Name a store, and what to check if it is not there."""
    match store:
        case RedisStore():
            return f"store with the prefix {store.prefix!r} in this Redis: check REDIS_URL, or its url and prefix"
        case ClusterStore():
            return f"store with the prefix {store.prefix!r} in this cluster: check REDIS_URL, or its url and prefix"
        case PostgresStore():
            schema = f"store in the schema {store.schema_name!r} of this database"
            return f"{schema}: check DATABASE_URL, or its url and schema_name"
        case HostStore():
            return f"store with the prefix {store.prefix!r} in the backend {store.backend!r}: {CHECK_STATE}"
        case OtherStore():
            return f"store {store.name!r}: check its settings"
        case _:
            return f"store {getattr(store, 'path', '')}: {CHECK_STATE}"
