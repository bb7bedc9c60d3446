"""The program that reads one PDF: the file comes in on the standard input, its text goes out as JSON.

It is started by `pdf.py` with its limits as an argument. A PDF can be made to take any amount of time and memory; a
process of its own can be given up, and nobody else waits meanwhile. Nothing of the package is imported here.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from contextlib import suppress
from io import BytesIO
from typing import Any

import pypdf

Json = dict[str, Any]


def main(limits: Json) -> None:
    """Reads the file, and says what is in it: `text`, or what is the `problem` with it."""
    _restrict(resource.RLIMIT_AS, limits["memory_bytes"])
    _restrict(resource.RLIMIT_CPU, limits["cpu_seconds"])
    _restrict(resource.RLIMIT_FSIZE, 0)
    logging.disable()
    json.dump(read(sys.stdin.buffer.read(), limits), sys.stdout)


def _restrict(what: int, most: int) -> None:
    # Not every system lets a process bound its memory.
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most, most))


def read(content: bytes, limits: Json) -> Json:
    """What is in a PDF."""
    try:
        return _read(content, limits)
    except MemoryError:
        return {"problem": "memory"}
    except Exception:  # noqa: BLE001 (whatever is wrong with it, its reader raises it)
        return {"problem": "broken"}


def _read(content: bytes, limits: Json) -> Json:
    reader = pypdf.PdfReader(BytesIO(content))
    # Many are encrypted only so that they cannot be changed: those open without a password.
    if reader.is_encrypted and not reader.decrypt(""):
        return {"problem": "encrypted"}
    if len(reader.pages) > limits["pages"]:
        return {"problem": "pages"}
    texts, size = [], 0
    for page in reader.pages:
        texts.append(page.extract_text().strip())
        size += len(texts[-1])
        if size > limits["characters"]:
            return {"problem": "characters"}
    return {"text": "\n\n".join(filter(None, texts))}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
