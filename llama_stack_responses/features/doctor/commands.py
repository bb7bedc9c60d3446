"""The command `doctor`, with its arguments."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any, Final

_TOKEN_DIGITS: Final = 9
_WHAT: Final = "ask a model server what it takes and how it answers, and print the profile that it needs"


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the program."""
    command: ArgumentParser = commands.add_parser("doctor", help=_WHAT, description=f"{_WHAT[0].upper()}{_WHAT[1:]}.")
    command.add_argument(
        "url", nargs="?", metavar="URL", help="the model server, up to /v1; without it, those of the configuration"
    )
    command.add_argument("model", nargs="?", metavar="MODEL", help="the model; without it, the only one of the server")
    command.add_argument(
        "--config",
        type=Path,
        default=Path("config.yaml"),
        metavar="CONFIG",
        help="the stack's configuration, whose providers are asked without URL (config.yaml)",
    )
    command.add_argument("--key-env", metavar="NAME", help="the environment variable with the key of the model server")
    command.add_argument("--key", metavar="KEY", help="the key itself, which other users of the machine can see")
    command.add_argument("--ca", type=Path, metavar="FILE", help="certificates of the authority of the model server")
    command.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="SECONDS", help="time limit of one answer (60)"
    )
    command.add_argument(
        "--context", type=_tokens, metavar="TOKENS", help="the model's context, if the server does not list it"
    )
    command.add_argument("--json", action="store_true", help="print JSON, one value a line")
    command.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    """Run the command. What it needs is imported now: an import of everything would delay all others."""
    from .doctor_command import doctor

    doctor(arguments)


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _TOKEN_DIGITS and int(text)):
        raise ArgumentTypeError("it is a number of tokens, such as 32768")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 3600:
        raise ArgumentTypeError("it is 1 to 3600 seconds")
    return number
