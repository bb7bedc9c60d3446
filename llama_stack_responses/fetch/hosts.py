"""The hosts of web addresses."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit


def web_host(url: str) -> str | None:
    """Return the lower-case host of an HTTP or HTTPS URL; None for other URLs."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        return None


def is_within(url: str, domains: Iterable[str]) -> bool:
    """Whether a URL's host is one of these domains or a subdomain."""
    host = f".{web_host(url) or ''}"
    return any(host.endswith(f".{domain.lower().strip('.')}") for domain in domains)
