"""Queries search engines with the `ddgs` package, in a worker process.

The package reads whole answers of any size, in threads that cannot be stopped. So it runs in a process that can be
killed, and its HTTP client limits the size of answers and the redirects.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import ddgs.base
import primp
from ddgs import DDGS
from ddgs.engines import ENGINES
from ddgs.exceptions import DDGSException
from ddgs.http_client import HttpClient

Json = dict[str, Any]

_MAX_BYTES: Final = 8 << 20
"""Maximum size of a decompressed answer."""
_PIECE_BYTES: Final = 1 << 16
_REDIRECTS: Final = 3
_REDIRECTED: Final = (301, 302, 303, 307, 308)


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the results of a search as JSON in `text`, or the reason for failure as `problem`.

    Args:
        content: the query.
        options: `engines`, `region`, `safe_search`, `count`, `proxy`, `ca_file` and the `seconds` of one request.
    """
    if unknown := sorted(set(options["engines"]) - ENGINES["text"].keys()):
        return {"problem": "engines", "unknown": ", ".join(unknown), "known": ", ".join(sorted(ENGINES["text"]))}
    failures: set[str] = set()
    # The process ends with the task, so nothing else gets this client.
    ddgs.base.HttpClient = partial(_BoundedClient, failures)
    search = DDGS(options["proxy"], options["seconds"], verify=options["ca_file"] or True)
    try:
        hits = search.text(
            content.decode(),
            region=options["region"],
            safesearch=options["safe_search"],
            max_results=options["count"],
            backend=",".join(options["engines"]) or "auto",
        )
    except DDGSException:
        # The package does not distinguish an engine that refuses from one that finds nothing.
        return {"problem": "failures", "failures": ", ".join(sorted(failures))} if failures else {"text": "[]"}
    results = [{"title": each["title"], "url": each["href"], "content": each["body"]} for each in hits]
    return {"text": json.dumps(results)}


class _Answer:
    """The fields of an HTTP answer that the engines read."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status_code = status
        self.content = body
        self.text = body.decode(errors="replace")


class _BoundedClient(HttpClient):  # type: ignore[misc]
    """The package's HTTP client with limits.

    Args:
        failures: collects the reasons of failed requests.
    """

    def __init__(self, failures: set[str], **settings: Any) -> None:
        super().__init__(**settings)
        self._failures = failures

    def request(self, method: str, url: str, **more: Any) -> _Answer:
        """Send a request and follow redirects within the engine's site.

        Raises:
            DDGSException: there is no answer, or it is too large.
        """
        try:
            answer = self._redirected(method, url, more)
            body = _body(answer)
        except Exception as error:
            self._failures.add(next((why for kind, why in _FAILURES if isinstance(error, kind)), "no answer"))
            raise DDGSException(type(error).__name__) from error
        if answer.status_code != 200:
            self._failures.add(f"status {answer.status_code}")
        return _Answer(answer.status_code, body)

    def _redirected(self, method: str, url: str, more: Json) -> Any:
        answer = self._requested(method, url, more)
        for _ in range(_REDIRECTS):
            target = urljoin(url, answer.headers.get("location", ""))
            if answer.status_code not in _REDIRECTED or not _is_same_site(url, target):
                break
            answer = self._requested("GET", target, {})
        return answer

    def _requested(self, method: str, url: str, more: Json) -> Any:
        return self.client.request(method, url, stream=True, follow_redirects=False, **more)


class _TooLarge(Exception):  # noqa: N818 (it describes the body)
    """The body is over the size limit."""


_FAILURES: Final = (
    (_TooLarge, "an answer that is too large"),
    (primp.TimeoutError, "no answer in time"),
    (primp.ConnectError, "no connection"),
)
"""Failure descriptions by exception class."""


def _body(answer: Any) -> bytes:
    body = bytearray()
    for piece in answer.iter_bytes(_PIECE_BYTES):
        body += piece
        if len(body) > _MAX_BYTES:
            raise _TooLarge
    return bytes(body)


def _is_same_site(url: str, target: str) -> bool:
    """Whether a redirect stays on the engine's site: HTTPS, and a host with the same last two labels."""
    there = urlsplit(target)
    return there.scheme == "https" and _site(there.hostname) == _site(urlsplit(url).hostname)


def _site(host: str | None) -> list[str]:
    return (host or "").split(".")[-2:]
