"""Tasks that act as `options` say, as hostile content would make them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def read(content: bytes, options: dict[str, Any]) -> dict[str, str]:  # noqa: C901
    """Perform the deed, and return the content."""
    match options.get("deed"):
        case "wait":
            time.sleep(3600)
        case "hold the interpreter":
            (b"-" + b"9" * 2_000_000).decode("punycode", "replace")
        case "take memory":
            return {"text": str(len(bytearray(options["bytes"])))}
        case "end":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise RecursionError
        case "write a file":
            Path(options["path"]).write_bytes(b"x")
        case "answer with a long head":
            return {"title": "x" * 100_000}
        case "answer with no texts":
            return {"title": 1}  # type: ignore[dict-item]
        case "remember":
            seen = vars(sys).setdefault("_seen", [])
            seen.append(content)
            return {"text": str(len(seen))}
    return {"text": content.decode(), "pid": str(os.getpid())}
