"""The command `keys`, with its arguments."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from importlib import import_module
from typing import Any

from ...commands.config_option import add_config

_WHAT = "create, list, rotate and revoke the keys with which users authenticate"


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the program."""
    keys: ArgumentParser = commands.add_parser("keys", help=_WHAT, description=f"{_WHAT[0].upper()}{_WHAT[1:]}.")
    actions = keys.add_subparsers(metavar="ACTION", required=True)
    create = _action(actions, "create", "create a key, and print its token, which is not shown again")
    create.add_argument("--owner", required=True, metavar="NAME", help="the user that it authenticates")
    create.add_argument("--tenant", default="", metavar="TENANT", help="the user's tenant, on OGX")
    create.add_argument("--name", metavar="TEXT", help="what people call the key (the owner's name)")
    create.add_argument("--team", default="", metavar="TEAM", help="the user's team")
    create.add_argument("--role", action="append", default=[], dest="roles", metavar="ROLE", help="a role, repeatable")
    create.add_argument(
        "--model",
        action="append",
        dest="models",
        metavar="MODEL",
        help="a model it may use, repeatable; a * at its end stands for any rest (all)",
    )
    create.add_argument(
        "--limit",
        action="append",
        default=[],
        type=_limit,
        dest="limits",
        metavar="NAME=NUMBER",
        help="a limit, repeatable",
    )
    create.add_argument("--days", type=_days, metavar="DAYS", help="days until it expires (never)")
    listed = _action(actions, "list", "list the keys")
    listed.add_argument("--owner", metavar="NAME", help="only those of this user")
    listed.add_argument("--team", metavar="TEAM", help="only those of this team")
    rotate = _action(actions, "rotate", "give a key a new token, and print it")
    rotate.add_argument("id", metavar="KEY", help="the id of the key")
    rotate.add_argument(
        "--overlap-hours", type=_hours, metavar="HOURS", help="how long the old token is accepted (keys.overlap_hours)"
    )
    revoke = _action(actions, "revoke", "revoke a key; servers refuse it after auth_cache_seconds at the latest")
    revoke.add_argument("id", metavar="KEY", help="the id of the key")


def _action(actions: Any, name: str, what: str) -> ArgumentParser:
    action: ArgumentParser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    add_config(action)
    action.add_argument("--json", action="store_true", help="print JSON, one value a line")
    action.set_defaults(run=partial(_run, name))
    return action


def _run(name: str, arguments: Namespace) -> None:
    """Run a command. What it needs is imported now: an import of everything would delay each of them."""
    getattr(import_module(".key_commands", __package__), f"{name}_key")(arguments)


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        raise ArgumentTypeError("it is NAME=NUMBER, such as requests_per_minute=60") from None
    return name, int(value) if value.is_integer() else value


def _days(text: str) -> float:
    return _number(text, 0.0001, 36_500, "days")


def _hours(text: str) -> float:
    return _number(text, 0, 8_760, "hours")


def _number(text: str, least: float, most: float, unit: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise ArgumentTypeError(f"it is a number of {unit}, at most {most}")
    return number
