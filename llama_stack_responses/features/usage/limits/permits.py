"""What a request holds of its limits until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....store.records import Op, Put
from .measures import headers_of
from .scopes import Scope
from .slots import Slots


class LimitedPermit:
    """The permit of a request.

    Attributes:
        slots: the slots of running responses that it uses.
        rows: the prefixes of its rows as a background response.
        on_release: are called when it is released.
        expires_at: when these rows count no longer, in seconds since the epoch.
    """

    __slots__ = ("_held", "_shown", "expires_at", "on_release", "rows", "slots")

    def __init__(self) -> None:
        self._held: list[tuple[Scope, int]] = []
        self._shown: dict[str, Scope] = {}
        self.slots: list[Slots] = []
        self.rows: list[str] = []
        self.on_release: list[Callable[[], None]] = []
        self.expires_at = 0.0

    @property
    def counts(self) -> bool:
        """What a limit allows is counted."""
        return True

    @property
    def headers(self) -> Mapping[str, str]:
        """OpenAI's headers about the limits of a minute: of those that apply, the ones with the least left."""
        headers: dict[str, str] = {}
        for scope in self._shown.values():
            headers |= headers_of(scope.measure, scope.meter)
        return headers

    def ops(self, response_id: str) -> Sequence[Op]:
        """Return the rows that count a background response."""
        return [Put(f"{prefix}{response_id}", b"", self.expires_at) for prefix in self.rows]

    def add(self, scope: Scope, units: int) -> None:
        """Hold units of a meter."""
        self._held.append((scope, units))
        if not scope.measure.is_quota:
            shown = self._shown.get(scope.measure.kind)
            if shown is None or scope.meter.remaining < shown.meter.remaining:
                self._shown[scope.measure.kind] = scope

    def begin(self) -> None:
        """Count the request: all of its limits admit it."""
        for scope, units in self._held:
            if scope.measure.kind == "requests":
                scope.meter.release(units)
                scope.meter.use(units)
        self._held = [each for each in self._held if each[0].measure.kind != "requests"]

    def release(self) -> None:
        """Hold nothing any longer."""
        held, self._held = self._held, []
        for scope, units in held:
            scope.meter.release(units)
        slots, self.slots = self.slots, []
        for each in slots:
            each.release()
        calls, self.on_release = self.on_release, []
        for call in calls:
            call()
