"""Clients that send requests without a pause, and what became of each request."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal

import httpx

type Json = dict[str, Any]
type Kind = Literal["answer", "stream", "background"]

MODEL: Final = "short"
CLIENTS: Final = 8
KINDS: Final[tuple[Kind, ...]] = ("answer", "stream", "background")
_PAUSE_SECONDS: Final = 0.2
"""Time that a client waits after a failure, so that a failing server does not get thousands of requests."""

_LETTERS: Final = 70
"""Length to which the message of an error is cut in the table."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request.

    Attributes:
        name: the request's text, which no other request has.
        kind: how it was sent.
        seconds: time until the end of its answer.
        received: whether anything of a successful answer has come.
        response_id: the id of the acknowledged response; None if the request failed.
        failure: status and error of the failure; empty if the response was acknowledged.
    """

    name: str
    kind: Kind
    seconds: float
    received: bool
    response_id: str | None
    failure: str


class Load:
    """Clients of one address, each in a thread with a connection that it keeps.

    Args:
        address: the root URL of the nginx.
        name: begins the text of each request.

    Attributes:
        sent: the requests that have ended.
    """

    def __init__(self, address: str, name: str = "request") -> None:
        self.sent: list[Sent] = []
        self._address = address
        self._name = name
        self._numbers = count()
        self._ended = threading.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Send requests during the block."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            working = [pool.submit(self._work) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                self._ended.set()
        for each in working:
            each.result()

    def _work(self) -> None:
        url = f"{self._address}/v1"
        with httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False) as http:  # noqa: S501 (plain HTTP)
            while not self._ended.is_set():
                number = next(self._numbers)
                sent = send(http, f"{self._name} {number}", KINDS[number % len(KINDS)])
                self.sent.append(sent)
                if sent.failure:
                    self._ended.wait(_PAUSE_SECONDS)


def send(http: httpx.Client, name: str, kind: Kind, model: str = MODEL) -> Sent:
    """Send one request, and read its whole answer."""
    begun, received, status = time.monotonic(), b"", 0
    body = {"model": f"local/{model}", "input": name, "stream": kind == "stream", "background": kind == "background"}
    try:
        with http.stream("POST", "/responses", json=body) as answer:
            status = answer.status_code
            for piece in answer.iter_bytes():
                received += piece
        response_id, failure = _acknowledged(status, received, kind)
    except httpx.HTTPError as error:
        response_id, failure = None, f"{'cut: ' if received else ''}{type(error).__name__}"
    seconds = time.monotonic() - begun
    return Sent(name, kind, seconds, status == 200 and bool(received), response_id, failure)


def noise(letters: int, seed: int) -> str:
    """Return so many letters, an even number, that do not compress well."""
    return random.Random(seed).randbytes(letters // 2).hex()  # noqa: S311 (no secret)


def _acknowledged(status: int, received: bytes, kind: Kind) -> tuple[str | None, str]:
    """Return the id of the acknowledged response, or the failure."""
    if status != 200:
        return None, f"{status} {_reason(received)}"
    if kind == "stream":
        return _end_of_stream(received)
    response = json.loads(received)
    if response["status"] == ("queued" if kind == "background" else "completed"):
        return response["id"], ""
    return None, f"200 {response['status']}: {_cut((response.get('error') or {}).get('message', ''))}"


def _end_of_stream(received: bytes) -> tuple[str | None, str]:
    ends = re.findall(rb"^data: (\{.*\})\r?$", received, re.MULTILINE)
    last: Json = json.loads(ends[-1]) if ends else {}
    response: Json = last.get("response") or {}
    if last.get("type") == "response.completed":
        return response["id"], ""
    if last.get("type") == "error":
        return None, f"200, then error: {_cut(last['message'])}"
    if last.get("type") == "response.failed":
        return None, f"200, then failed: {_cut(response['error']['message'])}"
    return None, f"200, then cut after {last.get('type', 'nothing')}"


def _reason(received: bytes) -> str:
    try:
        error: Json = json.loads(received)["error"]
    except (ValueError, KeyError, TypeError):
        return "page of nginx" if b"<html" in received else "without an error"
    return _cut(f"{error.get('code') or error.get('type')}: {error.get('message', '')}")


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."
