"""uvicorn's protocol for httptools, which the extensions of this package change."""

from __future__ import annotations

from typing import Any


def http_protocol() -> Any:
    """Return the class of the protocol; None without httptools, since uvicorn then uses another one."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return None
    return HttpToolsProtocol
