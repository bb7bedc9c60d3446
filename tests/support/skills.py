"""Skills as zip archives, and as a request declares them."""

from __future__ import annotations

import zipfile
from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

MANIFEST: Final = b"---\nname: sums\ndescription: Adds numbers.\n---\nRun scripts/add.sh with two numbers.\n"
SCRIPT: Final = b"#!/bin/sh\necho $(($1 + $2))\n"
FILES: Final[Mapping[str, bytes]] = {"sums/SKILL.md": MANIFEST, "sums/scripts/add.sh": SCRIPT}


def entry(path: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    """Return an entry of an archive with this file mode."""
    info = zipfile.ZipInfo(path)
    info.create_system = 3
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    return info


def archive(files: Mapping[str, bytes] = FILES) -> bytes:
    """Return a zip archive of these files; scripts can be executed."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for path, data in files.items():
            zipped.writestr(entry(path, 0o100755 if path.endswith(".sh") else 0o100644), data)
    return content.getvalue()


def skill(name: str = "sums", zipped: bytes | None = None, description: str = "Adds numbers.") -> dict[str, Any]:
    """Return a skill as a request declares it."""
    data = b64encode(archive() if zipped is None else zipped).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": description, "source": source}
