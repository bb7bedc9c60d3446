"""The commands of an operator, with their arguments."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ...commands.config_option import add_config
from ...core.discovery import features_with
from ...core.statuses import STATUSES


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of the program."""
    newest = _command(commands, "list", "list the newest responses of all owners, or of one", "list_responses")
    _list(newest, 20)
    _id(_command(commands, "show", "show a response with its owner and its whole input"))
    _id(_command(commands, "chain", "list a response and those that it continues"))
    tail = _command(commands, "tail", "list new responses as they are stored")
    _list(tail, 10)
    tail.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="polling interval (1)")
    _command(commands, "stats", "count stored and queued data")
    _command(commands, "queue", "list the background responses that wait and run")
    _command(
        commands,
        "partitions",
        "show where the partitions of the store are, how full they are and who serves them",
        module="partition_commands",
    )
    _command(commands, "profiles", "list what was learned about model servers, as entries of the setting 'profiles'")
    _audit(commands)
    _delete(commands)
    _sweep(commands)
    _export(commands)
    _backups(commands)
    recover = commands.add_parser(
        "recover",
        help="save what can be read of a damaged SQLite file to a new one",
        description="Save what can be read of a damaged SQLite file, which no server uses, to a new one.",
    )
    recover.add_argument("file", type=Path, metavar="FILE", help="the damaged file, with its -wal beside it")
    recover.add_argument("new", type=Path, metavar="NEW", help="the new file")
    recover.add_argument("--json", action="store_true", help="print JSON, one value a line")
    recover.set_defaults(run=partial(_run, "recovery", "recover"))
    _command(
        commands, "secret", "print the secret that the store keeps since no 'secrets' are configured", module="secret"
    )


def _backups(commands: Any) -> None:
    backup = _command(
        commands, "backup", "write all that the store holds to a file, while servers use it", module="backup_commands"
    )
    backup.add_argument("file", type=Path, metavar="FILE", help="the new file; - is standard output")
    restore = _command(commands, "restore", "write a backup to an empty store", module="backup_commands")
    restore.add_argument("file", type=Path, metavar="FILE", help="the backup, of any store")
    restore.add_argument("--merge", action="store_true", help="add missing rows to a store that is not empty")
    restore.add_argument(
        "--since",
        type=Path,
        metavar="EARLIER",
        help="only what changed since this backup of the same store, which was restored here; servers may use both",
    )
    restore.add_argument(
        "--live",
        action="store_true",
        help="the servers of the other store go on: leave to them what waits and runs there, until a later --since",
    )


def _delete(commands: Any) -> None:
    delete = _command(commands, "delete", "delete responses, or all that an owner has")
    delete.add_argument("ids", nargs="*", metavar="ID", help="the responses")
    _owner(delete)
    _on_request(delete)
    delete.add_argument("--yes", action="store_true", help="delete; without it, only count")


def _export(commands: Any) -> None:
    export = _command(commands, "export", "write all that an owner has, as lines of JSON")
    _owner(export)
    _on_request(export)
    export.add_argument("--out", type=Path, metavar="FILE", help="a new file to write to (standard output)")


def _audit(commands: Any) -> None:
    audit = _command(commands, "audit", "list what operators and leads of teams did, and what was refused")
    audit.add_argument("--actor", metavar="NAME", help="only acts of this user")
    audit.add_argument("--type", metavar="ACT", help="only acts of this type, such as response.deleted")
    _owner(audit)
    audit.add_argument("--limit", type=_count, default=20, metavar="N", help="how many to list (20)")


def _sweep(commands: Any) -> None:
    sweep = _command(commands, "sweep", "delete expired responses and conversations")
    sweep.add_argument("--yes", action="store_true", help="delete; without it, only count")
    sweep.add_argument(
        "--conversation-days",
        type=_days,
        metavar="DAYS",
        help="delete conversations that were not changed for so long (conversation_retention_days)",
    )


def _command(
    commands: Any, name: str, what: str, function: str | None = None, *, module: str = "store_commands"
) -> ArgumentParser:
    command: ArgumentParser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    add_config(command)
    command.add_argument("--json", action="store_true", help="print JSON, one value a line")
    command.set_defaults(run=partial(_run, module, function or name))
    return command


def _run(module: str, function: str, arguments: Namespace) -> None:
    """Run a command. What it needs is imported now: an import of everything would delay each of them."""
    getattr(import_module(f".{module}", __package__), function)(arguments)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError("it is a whole number, 1 at least")
    return number


def _days(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 36_500:
        raise ArgumentTypeError("it is a number of days, more than 0")
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


def _on_request(command: ArgumentParser) -> None:
    for name in features_with("on_request"):
        command.add_argument(f"--{name}", action="store_true", help=f"the owner's {name}, too")


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
