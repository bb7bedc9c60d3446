"""Checks of the environment variables that the demo's server reads, before anything is started."""

import os
from base64 import b64decode, b64encode

SECRET_BYTES = 32


def check_environment() -> None:
    """Raise `ValueError` with a sentence for the user if a variable has a value that the server would not accept."""
    _check_secret()
    _check_search()


def _check_secret() -> None:
    """Reject a secret that the server would not accept."""
    secret = os.environ.get("RESPONSES_SECRET") or b64encode(bytes(SECRET_BYTES)).decode()
    try:
        size = len(b64decode(secret, validate=True))
    except ValueError:  # not base64, or not ASCII
        size = 0
    if size != SECRET_BYTES:
        raise ValueError(
            f"RESPONSES_SECRET is not a secret of {SECRET_BYTES} bytes in base64. "
            f"Make one with: openssl rand -base64 {SECRET_BYTES}"
        )


def _check_search() -> None:
    """Reject an invalid value of WEB_SEARCH."""
    search = os.environ.get("WEB_SEARCH")
    if search not in (None, "", "ddgs"):
        raise ValueError(f"WEB_SEARCH is {search!r}; it can be 'ddgs', or be left out.")
