"""Counts the requests for responses that were refused, so that there is no response, and reports them to features.

Failed responses that are not stored are reported too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.errors import ApiError
from ..core.owner import Owner
from ..generation.activity import Activity
from ..generation.dependencies import OnRefused, Refused
from ..generation.run import ForegroundRun
from ..logs import known


class Refusals:
    """Counts the requests for responses that were refused, and reports them to features.

    Args:
        on_refused: functions of features, which are called for each.
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
        self._call_features(user, error, body)

    def note_unstored(self, error: ApiError, body: Any, owner: Owner | None = None) -> None:
        """Note that a response has failed whose request asks to store nothing: there is no other trace of it.

        Args:
            error, body, owner: as for `note`. The response has been counted.
        """
        if isinstance(body, Mapping) and body.get("store") is False:
            self._call_features(owner or self._current_user(), error, body)

    def _call_features(self, user: Owner, error: Exception, body: Any) -> None:
        refused = error if isinstance(error, ApiError) else ApiError(500, "The server had an error.")
        noted = Refused(user, refused, body, known("x_request_id") or "", self._clock())
        for each in self._on_refused:
            each(noted)

    def watch(self, run: ForegroundRun, body: Any) -> None:
        """Note that the request of a response was refused, should the response not begin, or not be stored."""
        run.on_ended(lambda _: self._ended(run, body))

    def _ended(self, run: ForegroundRun, body: Any) -> None:
        if run.error is not None:
            note = self.note if run.refused else self.note_unstored
            note(run.error, body)
