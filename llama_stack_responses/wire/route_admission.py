"""Admission control that all routes share: streams, downloads, large answers, and clients that read slowly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from ..admission import Admission, Quota, Reservation
from ..concurrency.large_work import LargeWork
from ..concurrency.share import ShareOf, equal_share, working_for
from ..config.limits import Limits
from ..core.owner import Owner
from ..logs import Attached
from .request_bodies import Bodies
from .request_cycle import cycle_of

_SMALL_BYTES: Final = 65_536
"""Bytes up to which a stored value does not count."""


class RouteAdmission:
    """Reservations for streams, downloads and large answers, and what else routes need of the limits.

    Attributes:
        bodies: reads the bodies of requests.
        request_bytes: maximum size of one body, and of one uploaded file.
        unread_seconds: maximum time for which a client may read nothing.
        abort_connection: closes the connection of a request's scope without waiting for the client.

    Args:
        current_user: returns the user of the current request.
        large_work: decodes large bodies.
        streams: counts the open event streams and WebSockets.
        share_of: returns the share of a user.
    """

    def __init__(
        self,
        limits: Limits,
        current_user: Callable[[], Owner],
        large_work: LargeWork,
        abort_connection: Callable[[Scope], None],
        streams: Admission,
        share_of: ShareOf = equal_share,
    ) -> None:
        answers = limits.answers
        self.bodies = Bodies(limits, current_user, large_work)
        self.request_bytes = limits.request_bytes
        self.unread_seconds = answers.unread_seconds
        self.abort_connection = abort_connection
        self._current_user, self._share_of = current_user, share_of
        self._streams = streams
        self._downloads = Admission(Quota("downloads", answers.downloads, answers.downloads_per_user))
        remembered = limits.websocket
        self._histories = Admission(
            Quota("histories on WebSockets", remembered.remembered_total_bytes, remembered.remembered_bytes_per_user)
        )
        self._answers = Admission(Quota("large answers", answers.total_bytes, answers.bytes_per_user))

    def working_for(self, user: Owner | None = None) -> Attached:
        """Count the work within the block as that of a user, by default the current one."""
        return working_for(self._share_of(user or self._current_user()))

    def histories(self, owner: Owner) -> Reservation:
        """Return an empty reservation for what a WebSocket remembers. The caller must release it."""
        return self._histories.reserve(owner)

    @property
    def held_answer_bytes(self) -> int:
        """Bytes that all large answers hold now."""
        return self._answers.held

    def stream(self, owner: Owner | None = None) -> Reservation:
        """Reserve one open stream for a user, by default the current one. The caller must release it.

        Raises:
            ApiError: 429 or 503 if there are too many.
        """
        return self._streams.reserve(owner or self._current_user()).add(1)

    def hold_stream(self, scope: Scope) -> None:
        """Count the answer to a request as a stream until it has been sent.

        Raises:
            ApiError: 429 or 503 if there are too many.
        """
        cycle_of(scope).hold(self.stream())

    def hold_download(self, scope: Scope) -> None:
        """Count the answer to a request as a download until it has been sent.

        Raises:
            ApiError: 429 or 503 if there are too many.
        """
        cycle_of(scope).hold(self._downloads.reserve(self._current_user())).add(1)

    def hold_value(self, scope: Scope) -> Callable[[int], None]:
        """Return a function that counts the bytes of a stored value as held for the answer, unless they are few.

        The function raises `ApiError` 429 or 503 if too much is held. Once a `JsonResponse` is encoded, only its
        bytes count.
        """

        def hold(size: int) -> None:
            if size > _SMALL_BYTES:
                cycle_of(scope).answer_reservation.add(size)

        return hold

    def large_answer(self, owner: Owner | None = None) -> Reservation:
        """Return an empty reservation for large answers to a user, by default the current one.

        The caller must release it.
        """
        return self._answers.reserve(owner or self._current_user())
