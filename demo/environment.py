"""Checks of the environment variables that the demo's server reads, before anything is started.

`make` runs this module before it installs packages, so it imports only the standard library.
"""

import os
import re
import sys
import tempfile
from base64 import b64decode, b64encode
from ipaddress import ip_network
from pathlib import Path

from terminal import error

SECRET_BYTES = 32
SECRETS = ("RESPONSES_SECRET", "RESPONSES_SECRET_2")
DEFAULT_PORT = "8321"
MAX_WORKERS = 64
CHOICES = {"WEB_SEARCH": ["ddgs"], "FILE_SEARCH": ["local"], "UNAVAILABLE_TOOLS": ["refuse", "omit"]}
"""The values that a variable can have."""
PACKAGE = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
HOST = r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?"
ORIGIN = r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+/?"


def check_environment() -> None:
    """Raise `ValueError` with a sentence for the user if a variable has a value that the server would not accept."""
    for name in SECRETS:
        _check_secret(name)
    for name, values in CHOICES.items():
        _check_choice(name, values)
    chosen_port()
    chosen_workers()
    _check_url("INFERENCE_URL")
    _check_seconds("FINISH_SECONDS")
    _check_networks("ALLOWED_NETWORKS")
    _check_each("ALLOWED_HOSTS", HOST, "host names such as responses.example.com, without a scheme or a port")
    _check_each("ALLOWED_ORIGINS", ORIGIN, "origins such as https://app.example.com, without a path")
    _check_each("CODE_PACKAGES", PACKAGE, "names of packages such as numpy,pandas,matplotlib")
    _check_lengths("EMBEDDING_MODELS")
    if os.environ.get("FILE_SEARCH") and os.environ.get("EMBEDDING_MODELS"):
        raise ValueError("FILE_SEARCH starts an embedding model, and EMBEDDING_MODELS names others; set only one.")
    if folder := os.environ.get("CONTAINERS_DIR"):
        writable("CONTAINERS_DIR", Path(folder))


def chosen_port() -> int:
    """Return the port to listen on; raise `ValueError` if it is not valid."""
    port = os.environ.get("LLAMA_STACK_PORT") or DEFAULT_PORT
    if not port.isdecimal() or not 1024 <= int(port) <= 65535:
        raise ValueError(f"LLAMA_STACK_PORT is {port!r}; it must be a number from 1024 to 65535.")
    return int(port)


def chosen_workers() -> int:
    """Return the number of server processes; raise `ValueError` if it is not valid."""
    workers = os.environ.get("WORKERS") or "1"
    if not workers.isdecimal() or not 1 <= int(workers) <= MAX_WORKERS:
        raise ValueError(f"WORKERS is {workers!r}; it must be a number from 1 to {MAX_WORKERS}.")
    return int(workers)


def writable(name: str, folder: Path) -> Path:
    """Return the folder that the variable `name` chooses; create it, and raise `ValueError` if it is not writable."""
    chosen = folder.expanduser().absolute()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=chosen).close()
    except OSError as problem:
        raise ValueError(f"{name} is {chosen}, where nothing can be written: {problem.strerror}.") from problem
    return chosen


def _check_secret(name: str) -> None:
    """Reject a secret that the server would not accept."""
    secret = os.environ.get(name) or b64encode(bytes(SECRET_BYTES)).decode()
    try:
        size = len(b64decode(secret, validate=True))
    except ValueError:  # not base64, or not ASCII
        size = 0
    if size != SECRET_BYTES:
        raise ValueError(
            f"{name} is not a secret of {SECRET_BYTES} bytes in base64. "
            f"Make one with: openssl rand -base64 {SECRET_BYTES}"
        )


def _check_url(name: str) -> None:
    url = os.environ.get(name)
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"{name} is {url!r}; it must begin with http:// or https://.")


def _check_choice(name: str, values: list[str]) -> None:
    chosen = os.environ.get(name)
    if chosen and chosen not in values:
        listed = " or ".join(map(repr, values))
        raise ValueError(f"{name} is {chosen!r}; it can be {listed}, or be left out.")


def _check_seconds(name: str) -> None:
    seconds = os.environ.get(name) or "0"
    try:
        valid = float(seconds) >= 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{name} is {seconds!r}; it must be a number of seconds, 0 or more.")


def _check_networks(name: str) -> None:
    for network in filter(None, map(str.strip, os.environ.get(name, "").split(","))):
        try:
            ip_network("127.0.0.0/8" if network == "loopback" else network)
        except ValueError:
            raise ValueError(f"{name} has {network!r}; it lists networks such as loopback,10.1.0.0/16.") from None


def _check_each(name: str, form: str, listed: str) -> None:
    for value in filter(None, map(str.strip, os.environ.get(name, "").split(","))):
        if not re.fullmatch(form, value):
            raise ValueError(f"{name} has {value!r}; it lists {listed}.")


def _check_lengths(name: str) -> None:
    for entry in filter(None, map(str.strip, os.environ.get(name, "").split(","))):
        model, _, length = entry.rpartition("=")
        if not (model and length.isdecimal() and int(length)):
            raise ValueError(
                f"{name} has {entry!r}; it lists models with the length of their vectors, as in nomic-embed-text=768."
            )


def main() -> int:
    """Check the variables; return 1 after an error."""
    try:
        check_environment()
    except ValueError as problem:
        error(f"\n{problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
