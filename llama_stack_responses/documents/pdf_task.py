"""Reads one PDF, in a worker process: a malicious PDF can take any amount of time and memory."""

from __future__ import annotations

from io import BytesIO

import pypdf

from ..core.surrogates import without_surrogates
from ..core.types import Json


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the `text` of a PDF, or the `problem` with it; `options` has the maximum `pages` and `characters`."""
    reader = pypdf.PdfReader(BytesIO(content))
    # Many are encrypted only against changes; these open with an empty password.
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
    return {"text": without_surrogates("\n\n".join(filter(None, texts)))}
