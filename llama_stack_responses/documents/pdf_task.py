"""Reads one PDF, in a worker process: a PDF can be made to take any amount of time and memory."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pypdf

from .whole import whole

Json = dict[str, Any]


def read(content: bytes, options: Json) -> dict[str, str]:
    """The `text` of a PDF, or what is the `problem` with it; `options` has the `pages` and `characters` at most."""
    reader = pypdf.PdfReader(BytesIO(content))
    # Many are encrypted only so that they cannot be changed: those open without a password.
    if reader.is_encrypted and not reader.decrypt(""):
        return {"problem": "encrypted"}
    if len(reader.pages) > options["pages"]:
        return {"problem": "pages"}
    texts, size = [], 0
    for page in reader.pages:
        texts.append(page.extract_text().strip())
        size += len(texts[-1])
        if size > options["characters"]:
            return {"problem": "characters"}
    return {"text": whole("\n\n".join(filter(None, texts)))}
