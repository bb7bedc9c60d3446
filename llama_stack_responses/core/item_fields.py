"""Fields that many kinds of items have."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from .inline_data import check_image, is_data_url
from .shapes import Check, Location, data, invalid, object_of, one_of, schema_of, string, tagged, takes


def _url(*, or_image: bool = False) -> Check:
    """Return a check for a URL on the web; empty counts as absent.

    URLs with a user or password are refused, since they would be stored.

    Args:
        or_image: whether an image in a data URL is accepted too.
    """
    starts = ("https://", "http://", *(("data:",) if or_image else ()))

    @takes(schema_of(data))
    def check(value: Any, at: Location) -> str:
        url = data(value, at)
        if not url:
            return url
        if or_image and is_data_url(url):
            check_image(url, at)
            return url
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise invalid(at, "Expected a valid URL.") from None
        if not url[:8].lower().startswith(starts):
            raise invalid(at, f"Expected a URL that begins with {' or '.join(starts)}.")
        if "@" in parts.netloc:
            raise invalid(at, "A URL must not contain a user or a password. Use a signed one, or upload the file.")
        if at.limits.bounded and not host:
            raise invalid(at, "Expected a URL with the name of a host after '//'.")
        return url

    return check


ID: Final = string(1, 512)
OWN_ID: Final = string(0, 512)
"""Clients whose types require an id send an empty one for an item that has none."""
NAME: Final = string(1, 512)
TEXT: Final = string()
STATUS: Final = one_of("in_progress", "completed", "incomplete")
CALL_STATUS: Final = one_of("in_progress", "searching", "interpreting", "completed", "failed", "incomplete")
"""The status of a call of a hosted tool."""
CALLER: Final = tagged({"direct": object_of({}), "program": object_of({"caller_id": ID}, "caller_id")})
IMAGE_URL: Final = _url(or_image=True)
FILE_URL: Final = _url()
