"""What all routes share: how much of what clients send and are sent is held, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from llama_stack_responses.admission import Admission, Lease, Quota
from llama_stack_responses.config import Limits
from llama_stack_responses.core.owner import Owner

from .bodies import Bodies
from .exchange import exchange_of
from .responses import Json

_SMALL: Final = 65_536
"""Bytes up to which an answer does not count."""


class Traffic:
    """The bounds on requests and answers.

    Attributes:
        bodies: reads the bodies of requests.
        request_bytes: size of one body, and of one uploaded file.
        unread_seconds: how long a client may take nothing of what it is sent.
        break_off: ends the connection of a request's scope without waiting for the client.

    Args:
        who: the user who sent the request that is being served.
    """

    def __init__(self, limits: Limits, who: Callable[[], Owner], break_off: Callable[[Scope], None]) -> None:
        answers = limits.answers
        self.bodies = Bodies(limits, who)
        self.request_bytes = limits.request_bytes
        self.unread_seconds = answers.unread_seconds
        self.break_off = break_off
        self._who = who
        self._streams = Admission(Quota("streams", answers.streams, answers.streams_per_user))
        self._downloads = Admission(Quota("downloads", answers.downloads, answers.downloads_per_user))
        self._answers = Admission(Quota("large answers", answers.total_bytes, answers.bytes_per_user))

    def stream(self, owner: Owner | None = None) -> Lease:
        """One open stream of a user, by default of the user who asks; it must be released.

        Raises:
            ApiError: 429 or 503, there are too many.
        """
        return self._streams.lease(owner or self._who()).take(1)

    def hold_stream(self, scope: Scope) -> None:
        """Counts the answer to a request as a stream until it has gone out.

        Raises:
            ApiError: 429 or 503, there are too many.
        """
        exchange_of(scope).hold(self.stream())

    def hold_download(self, scope: Scope) -> None:
        """Counts the answer to a request as a download until it has gone out.

        Raises:
            ApiError: 429 or 503, there are too many.
        """
        exchange_of(scope).hold(self._downloads.lease(self._who())).take(1)

    def hold_bytes(self, scope: Scope, size: int) -> None:
        """Counts the bytes of an answer as held until it has gone out, unless it is small.

        Raises:
            ApiError: 429 or 503, there are too many.
        """
        if size > _SMALL:
            exchange_of(scope).hold(self.large_answer()).take(size)

    def large_answer(self) -> Lease:
        """What large answers to the user who asks hold; it must be released."""
        return self._answers.lease(self._who())

    def stored(self, scope: Scope, answer: Json) -> Json:
        """An answer that can be asked for again, with its bytes counted until it has gone out.

        Raises:
            ApiError: 429 or 503, there are too many.
        """
        self.hold_bytes(scope, len(answer.body))
        return answer
