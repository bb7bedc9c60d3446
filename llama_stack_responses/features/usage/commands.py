"""The command `usage`, with its arguments."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any, Final

from ...commands.config_option import add_config

_WHAT: Final = "show what users, teams, keys and models have used"
_GROUPS: Final = ("user", "team", "key", "model", "metadata")


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the program."""
    command: ArgumentParser = commands.add_parser("usage", help=_WHAT, description=f"{_WHAT[0].upper()}{_WHAT[1:]}.")
    add_config(command)
    command.add_argument("--days", type=_days, default=30, metavar="N", help="the last days, today included (30)")
    command.add_argument(
        "--width", choices=("total", "day", "hour"), default="total", help="one row for each of these times (total)"
    )
    command.add_argument(
        "--by",
        type=_groups,
        default=["user", "model"],
        metavar="NAMES",
        help=f"one row for each of these, with commas: {', '.join(_GROUPS)} (user,model)",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV, with all that is counted")
    form.add_argument("--json", action="store_true", help="print JSON, one value a line")
    command.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    """Run the command. What it needs is imported now: an import of everything would delay all others."""
    from .usage_command import usage

    usage(arguments)


def _days(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= number <= 3660:
        raise ArgumentTypeError("it is 1 to 3660 days")
    return number


def _groups(text: str) -> list[str]:
    names = [each for each in text.split(",") if each]
    if wrong := [each for each in names if each not in _GROUPS]:
        raise ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(_GROUPS)}")
    return list(dict.fromkeys(names))
