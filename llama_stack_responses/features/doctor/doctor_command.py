"""The command `doctor`: examines model servers, and prints what it has found out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final

from ...commands.command_error import CommandError
from ...commands.interrupts import STATUS, end_in_order
from ...commands.progress import ProgressLine
from ...commands.tables import duration, print_json, print_rows, printable
from ...config import ResponsesConfig
from ...config.stack_file import quick_settings
from ...core.discovery import modules_of_features
from ...core.errors import ApiError
from ...logs import print_no_lines
from ...model_server.client import WAIT
from .answer import Bounds
from .checks import CHECKS, Check
from .examination import Clock, Examination, Subject
from .report import Report, escaped, rows_of, speeds_of
from .targets import Target, is_alone, targets_of

_COLUMNS: Final = {"title": "CHECK", "outcome": "RESULT", "what": "WHAT HAPPENS"}
_PLAIN_CHARACTERS: Final = 1_000
"""Maximum characters of a cell. Where the output is no terminal, each check has one line."""
_OTHER_COLUMNS: Final = max(len(check.title) for check in CHECKS) + len("adapted") + 4
"""Columns of the terminal that the first two take."""
_FEWEST_COLUMNS: Final = 30
_SHOWN_MODELS: Final = 20
_HIDDEN_CHARACTERS: Final = 6
"""Characters of a key by which its beginning is found. One that is not longer is no secret."""
_CLOCK: Final = Clock(time.monotonic, time.time)


def doctor(arguments: Namespace) -> None:
    """Run `doctor`: examine the model server of a URL, or of a configuration, with what its features probe."""
    print_no_lines()
    targets = targets_of(arguments, os.environ)
    end_in_order()
    failed = [each for target in targets if (each := _examined(target, arguments))]
    if not is_alone(arguments) and (settings := quick_settings(arguments.config, os.environ)):
        failed += _probed(settings, as_json=arguments.json)
    if failed:
        for sentence in failed[:-1]:
            print(f"llama-stack-responses: {sentence}", file=sys.stderr)
        raise CommandError(failed[-1])


def _probed(settings: ResponsesConfig, *, as_json: bool) -> list[str]:
    """Let the features try what they need; return why something cannot be used."""
    failed = []
    for feature, module in modules_of_features("probe").items():
        try:
            works = asyncio.run(module.probe(settings))
        except CommandError as error:
            failed.append(str(error))
            continue
        if works and as_json:
            print_json({"feature": feature, "outcome": "works", "what": works})
        elif works:
            print(f"\n{printable(works, len(works))}")
    return failed


def _examined(target: Target, arguments: Namespace) -> str | None:
    """Examine a model server, and print the report; return why it cannot be examined."""
    made = [0]
    try:
        report = asyncio.run(_examine(target, arguments, made))
    except ApiError as error:
        return _without(target.key, _advised(error, target))
    except KeyboardInterrupt:
        raise CommandError(
            f"Stopped after {made[0]} of {len(CHECKS)} checks: run it again for all of them.", STATUS
        ) from None
    _print(report, as_json=arguments.json)
    return None


def _advised(error: ApiError, target: Target) -> str:
    """Return the sentence about a model server that cannot be examined, with what helps at the command."""
    said = error.message.replace(WAIT, WAIT.replace("raise the time limit", "raise --seconds"))
    if error.upstream and error.upstream.cause == "server_error":
        where = f"see the log of the model server at {target.client.url}, or try again"
        return f"{said.rstrip('.')}: {where}, since it may still load its model."
    return said


async def _examine(target: Target, arguments: Namespace, made: list[int]) -> Report:
    client, listed = target.client, ""
    clean = partial(_without, target.key)
    try:
        model, context_length, listed = await _model(target, arguments.seconds, clean)
        match = f"{escaped(target.name)}/{escaped(model)}" if target.name else f"*/{escaped(model)}"
        subject = Subject(target.name or client.url, model, match, context_length or arguments.context)
        with ProgressLine(f"checks of {printable(model)}") as line:

            def show(number: int, check: Check) -> None:
                made[0] = number
                line.show(f"{number} of {len(CHECKS)} checks of {printable(model)}: {check.title}")

            bounds = Bounds(arguments.seconds)
            report = await Examination(client, subject, bounds, _CLOCK, clean=clean, progress=show).run()
        if listed:
            said = f"the model server does not list {printable(model)}, but {listed}: another model may have answered"
            print(f"llama-stack-responses: {said}.", file=sys.stderr)
        return report
    except ApiError as error:
        if error.code == "model_not_found" and listed:
            raise ApiError(404, f"{error.message.rstrip('.')}: name one of {listed}.") from error
        raise
    finally:
        await client.close()


async def _model(target: Target, seconds: float, clean: Callable[[str], str]) -> tuple[str, int | None, str]:
    """Return the model to examine, and the tokens of its context, if they are listed; and the models, if it is none."""
    wanted = target.model
    try:
        async with asyncio.timeout(seconds):
            listed = await target.client.models()
    except (ApiError, TimeoutError) as error:
        if wanted is not None:
            return wanted, None, ""
        if isinstance(error, ApiError):
            raise
        late = f"The model server at {target.client.url} does not list its models within {seconds:g} seconds"
        raise ApiError(504, f"{late}: if it loads a model or is slow, try again with more --seconds.") from error
    if wanted is not None:
        return wanted, listed.get(wanted), "" if wanted in listed else _names(listed, clean)
    if len(listed) == 1:
        return *next(iter(listed.items())), ""
    said = f"has several models: name one of {_names(listed, clean)}" if listed else "lists no models: name one"
    raise ApiError(400, f"The model server at {target.client.url} {said}.")


def _names(listed: Mapping[str, int | None], clean: Callable[[str], str]) -> str:
    names = [clean(printable(each)) for each in list(listed)[:_SHOWN_MODELS]]
    more = f" and {len(listed) - len(names)} more" if len(listed) > len(names) else ""
    return f"{', '.join(names)}{more}"


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    rows = [line for row in rows_of(report) for line in _lines(*row)]
    print_rows(rows, _COLUMNS, as_json=False, widest=_PLAIN_CHARACTERS)
    print()
    took = f"{report.requests} requests in {duration(report.seconds)}"
    print(f"{printable(report.model)} at {printable(report.server)}: {took}.")
    if speeds := speeds_of(report):
        print(f"Speed: {', '.join(speeds)}.")
    if report.profile is None:
        print("It needs no entry of the setting 'profiles'.")
    else:
        # JSON is YAML, and ASCII: the name of a model may contain characters that control a terminal.
        print(f"The entry of the setting 'profiles' that it needs:\n\n- {json.dumps(report.profile)}")


def _lines(title: str, outcome: str, what: str) -> Iterator[Mapping[str, str]]:
    """Yield the row of a finding; on a terminal, as many as its lines need."""
    lines = [what]
    if sys.stdout.isatty():
        width = get_terminal_size().columns - _OTHER_COLUMNS
        lines = wrap(what, max(width, _FEWEST_COLUMNS)) or [""]
    yield {"title": title, "outcome": outcome, "what": lines[0]}
    yield from ({"title": "", "outcome": "", "what": line} for line in lines[1:])


def _without(key: str, text: str) -> str:
    """Return a text without a key, and without its beginning where the text was cut."""
    start = key[:_HIDDEN_CHARACTERS]
    while len(key) > _HIDDEN_CHARACTERS and (place := text.find(start)) >= 0:
        length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text[place:], key, strict=False)))
        text = f"{text[:place]}***{text[place + length :]}"
    return text
