"""Counts the requests for responses that were refused, so that there is no response, and tells the features of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import ApiError
from ..core.owner import Owner
from ..generation.activity import Activity
from ..generation.dependencies import OnRefused, Refused
from ..generation.run import ForegroundRun
from ..logs import known


class Refusals:
    """Counts the requests for responses that were refused, and tells the features of them.

    Args:
        on_refused: are told.
        activity: counts them.
        current_user: returns the user of the current request.
        clock: returns the time, in seconds since the epoch.
    """

    def __init__(
        self,
        on_refused: Sequence[OnRefused],
        activity: Activity,
        current_user: Callable[[], Owner],
        clock: Callable[[], float],
    ) -> None:
        self._on_refused, self._activity = on_refused, activity
        self._current_user, self._clock = current_user, clock

    def note(self, error: Exception, body: Any = None, owner: Owner | None = None) -> None:
        """Note that a request was refused.

        Args:
            error: why; anything else than an `ApiError` is an internal error.
            body: the request's decoded JSON, which was not checked; None if it could not be read.
            owner: whose request it was, by default that of the current user.
        """
        user = owner or self._current_user()
        self._activity.of(user).failed += 1
        refused = error if isinstance(error, ApiError) else ApiError(500, "The server had an error.")
        noted = Refused(user, refused, body, known("x_request_id") or "", self._clock())
        for each in self._on_refused:
            each(noted)

    def watch(self, run: ForegroundRun, body: Any) -> None:
        """Note that the request of a response was refused, should the response not begin."""
        run.on_ended(lambda _: self.note(run.error, body) if run.refused and run.error else None)
