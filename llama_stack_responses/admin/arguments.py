"""The arguments of the operator's commands."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..core.statuses import STATUSES

type Add = Callable[..., ArgumentParser]


def add_commands(add: Any) -> None:
    """Add the commands to the subparsers of a command line."""
    _list(_command(add, "commands", "list_responses", "list", "list the newest responses of all owners, or of one"), 20)
    _id(_command(add, "commands", "show", "show", "show a response with its owner and its whole input"))
    _id(_command(add, "commands", "chain", "chain", "list a response and those that it continues"))
    tail = _command(add, "commands", "tail", "tail", "list new responses as they are stored")
    _list(tail, 10)
    tail.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="polling interval (1)")
    _command(add, "commands", "stats", "stats", "count stored and queued data")
    _command(add, "commands", "queue", "queue", "list the background responses that wait and run")
    delete = _command(add, "commands", "delete", "delete", "delete responses, or all that an owner has")
    delete.add_argument("ids", nargs="*", metavar="ID", help="the responses")
    _owner(delete)
    delete.add_argument("--yes", action="store_true", help="delete; without it, only count")
    sweep = _command(add, "commands", "sweep", "sweep", "delete the responses that are older than retention_days")
    sweep.add_argument("--yes", action="store_true", help="delete; without it, only count")
    export = _command(add, "commands", "export", "export", "write all that an owner has, as lines of JSON")
    _owner(export)
    export.add_argument("--out", type=Path, metavar="FILE", help="a new file to write to (standard output)")
    backup = _command(
        add, "backups", "backup", "backup", "write all that the store holds to a file, while servers use it"
    )
    backup.add_argument("file", type=Path, metavar="FILE", help="the new file; - is standard output")
    restore = _command(add, "backups", "restore", "restore", "write a backup to an empty store")
    restore.add_argument("file", type=Path, metavar="FILE", help="the backup, of any store")
    restore.add_argument("--merge", action="store_true", help="add missing rows to a store that is not empty")
    _command(
        add, "backups", "secret", "secret", "print the secret that the store keeps since no 'secrets' are configured"
    )


def add_config(command: ArgumentParser) -> None:
    """Add the option that names the stack's configuration."""
    command.add_argument(
        "--config",
        type=Path,
        default=Path("config.yaml"),
        metavar="CONFIG",
        help="the stack's configuration, which names the store (config.yaml); its variables come from the environment",
    )


def _command(add: Any, module: str, function: str, name: str, what: str) -> ArgumentParser:
    command: ArgumentParser = add.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    add_config(command)
    command.add_argument("--json", action="store_true", help="print JSON, one value a line")
    command.set_defaults(run=partial(_run, module, function))
    return command


def _run(module: str, function: str, arguments: Namespace) -> None:
    """Run a command. What it needs is imported now: an import of everything would delay each of them."""
    from . import backups, commands

    getattr({"backups": backups, "commands": commands}[module], function)(arguments)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError("it is a whole number, 1 at least")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 86_400:
        raise ArgumentTypeError("it is 0.1 to 86400 seconds")
    return number


def _id(command: ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="the response")


def _owner(command: ArgumentParser) -> None:
    command.add_argument(
        "--owner", metavar="NAME", help="the owner's name; '' is the one owner of a stack without authentication"
    )
    command.add_argument("--tenant", default="", metavar="TENANT", help="the owner's tenant, on OGX")


def _list(command: ArgumentParser, limit: int) -> None:
    _owner(command)
    command.add_argument("--limit", type=_count, default=limit, metavar="N", help=f"how many to list ({limit})")
    command.add_argument(
        "--status",
        choices=STATUSES,
        metavar="STATUS",
        help=f"only responses with this status: {', '.join(STATUSES)}",
    )
    command.add_argument("--model", metavar="MODEL", help="only responses of this model")
