"""Tables for a terminal, and JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO
from unicodedata import combining, east_asian_width

type Json = Mapping[str, Any]

COLUMN_CHARACTERS: Final = 60
"""Maximum characters of a cell, unless a table has longer ones."""


def print_json(value: Any, file: TextIO | None = None) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value), file=file, flush=True)


def print_rows(
    rows: Sequence[Json],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    head: bool = True,
    widest: int = COLUMN_CHARACTERS,
) -> None:
    """Print rows, as a table with these columns or each as a line of JSON.

    Args:
        columns: the titles by the names of the fields.
        head: whether the table has a line of titles.
        widest: maximum characters of a cell.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [[printable(row.get(name), widest) for name in columns] for row in rows]
    titles = [[*columns.values()]] if head else []
    widths = [max(map(columns_of, column)) for column in zip(*titles, *cells, strict=True)] if titles or cells else []
    for line in (*titles, *cells):
        padded = (cell + " " * (width - columns_of(cell)) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())


def print_fields(fields: Json, *, as_json: bool, file: TextIO | None = None) -> None:
    """Print fields to a file or standard output, one a line, or all as JSON."""
    if as_json:
        print_json(fields, file)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {printable(value)}", file=file)


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: wide letters and emoji take two, combining ones none."""
    return sum(2 if east_asian_width(each) in "WF" else not combining(each) for each in text)


def printable(value: Any, widest: int = COLUMN_CHARACTERS) -> str:
    """Return a value as the text of a cell, without characters that control a terminal."""
    if value is None:
        return "-"
    text = str(value)
    cut = text if len(text) <= widest else f"{text[: widest - 1]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in cut)


def moment(seconds: float | None) -> str | None:
    """Return a moment, in seconds since the epoch, in UTC."""
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def duration(seconds: float | None) -> str | None:
    """Return a number of seconds as text: in seconds below two minutes, else in minutes or hours."""
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
