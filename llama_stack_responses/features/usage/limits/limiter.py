"""Admits requests within the limits of their user, team, key and model, and counts what they have used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from ....core.errors import ApiError
from ....core.ids import new_id
from ....core.lru_cache import LruCache
from ....core.owner import Owner
from ....core.types import Json
from ....feature import CreateRequest, Ended, Permit, PlainRequest
from ....generation.activity import Activity
from ....lifecycle.periodic import Periodic
from ....logs import Outage, get_logger
from ....store.clock import StoreClock
from ....store.records import UNAVAILABLE, Delete, Op, Records
from ..counted import counts_of
from ..prices import Prices
from ..settings import Limit
from .background import KEPT_SECONDS, BackgroundRows, prefix_of, refusal
from .cuts import Cuts
from .key_limits import KeyLimits
from .measures import MEASURES
from .meters import Meter
from .permits import LimitedPermit
from .reports import Reports
from .scopes import Scope, name_of
from .slots import SECONDS, Slots
from .stored import StoredQuota, is_stored, row_of
from .stored import refusal as storage_refusal
from .windows import DAY, MINUTE

logger = get_logger(__name__)

_OF_KEY: Final = -1
"""Stands for the limit that the key of a request has itself, among the indexes of the limits."""
_SCOPES: Final = 20_000
"""Meters that a server keeps; of those used least recently, it forgets what it has taken."""
_SETTLE_SECONDS: Final = 1.0
_CLOCK_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 5.0
"""Seconds between two reads of what other servers have used of the limits that end responses, or have stored."""


class Limiter(Periodic):
    """The limits of the requests to this server.

    Args:
        records: the store.
        limits: the limits of the configuration. Those of the keys of requests count as well.
        prices: what usage costs.
        reports: reports limits that are reached.
        activity: has the responses that this server runs.
    """

    def __init__(
        self, records: Records, limits: Sequence[Limit], prices: Prices, reports: Reports, activity: Activity
    ) -> None:
        super().__init__(self.settle, "could not settle limits", logger, _SETTLE_SECONDS)
        self._records, self._limits, self._prices = records, limits, prices
        self._of_keys, self._reports = KeyLimits(prices), reports
        self._clock, self._read_at = StoreClock(records), 0.0
        self._server = new_id("server")
        self._meters: LruCache[tuple[int, str, str], Scope] = LruCache(_SCOPES)
        self._owing: set[Scope] = set()
        self._slots: dict[tuple[int, str], Slots] = {}
        self._background = BackgroundRows(records)
        self._stored = StoredQuota(records)
        cuts = any(each.cut_running for each in limits)
        self._cuts = Cuts(activity, self._cutting, prices, reports) if cuts else None
        self._renew_at = self._look_at = self._share_at = 0.0
        self._outage = Outage()

    async def stop(self) -> None:
        """Settle, and give back what is not used."""
        await super().stop()
        try:
            await self.settle()
            for scope in self._meters.values():
                await scope.meter.give_back()
            for slots in self._slots.values():
                await slots.renew()
            await self._stored.settle()
        except ApiError as error:
            logger.warning("could not give back what limits allow: %s", error)

    async def admit(self, owner: Owner, request: CreateRequest | PlainRequest) -> Permit:
        """Admit a request.

        Raises:
            ApiError: 429, a limit is reached. 403, the limits of the key cannot be enforced.
        """
        limits = [*self._limits_of(owner, request.model, self._of_keys.of(owner))]
        if limits and not self._read_at:
            await self._read_clock()
        permit = LimitedPermit()
        try:
            for index, limit, name in limits:
                if limit.stored_bytes is not None and is_stored(request):
                    await self._check_stored(limit, name, owner)
                if limit.background is not None and request.background:
                    await self._take_row(limit, name, owner, permit)
                await self._admit_by(index, limit, name, owner, permit)
        except BaseException:
            permit.release()
            raise
        permit.begin()
        if is_stored(request):
            self._add_stored(((limit, name) for _, limit, name in limits), request.input)
        return permit

    async def admit_items(self, owner: Owner, items: Sequence[Json]) -> None:
        """Admit items that a user stores in a conversation, and count them.

        Raises:
            ApiError: 429, a limit is reached. 403, the limits of the key cannot be enforced.
        """
        limits = [(limit, name) for _, limit, name in self._limits_of(owner, "", self._of_keys.of(owner))]
        for limit, name in limits:
            if limit.stored_bytes is not None:
                await self._check_stored(limit, name, owner)
        self._add_stored(limits, items)

    def count(self, ended: Ended) -> None:
        """Count what a response has used."""
        model, limits = ended.response["model"], self._limits_at_end(ended)
        counts = counts_of(ended) if limits else {}
        if ended.response.get("store"):
            self._add_stored(((limit, name) for _, limit, name in limits), ended.response)
        if self._cuts:
            counts = self._cuts.used(ended.response["id"], counts)
        for index, limit, name in limits:
            for scope in self._scopes(index, limit, name):
                units = scope.measure.used(counts, model, self._prices)
                if units:
                    scope.use(units)
                    self._owing.add(scope)

    def ended_ops(self, ended: Ended) -> Sequence[Op]:
        """Return what the commit of a response's end writes: it waits and runs no longer."""
        if not ended.response["background"]:
            return []
        return [
            Delete(f"{prefix_of(limit, name)}{ended.response['id']}")
            for _, limit, name in self._limits_at_end(ended)
            if limit.background is not None
        ]

    async def settle(self) -> None:
        """Take from the store what was used beyond what this server had taken, and renew its slots.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if self._read_at and self._clock() - self._read_at > _CLOCK_SECONDS:
            await self._read_clock()
        owing, self._owing = self._owing, set()
        try:
            while owing:
                scope = next(iter(owing))
                await scope.meter.settle()
                owing.discard(scope)
        finally:
            self._owing |= owing
        await self._renew_slots()
        if self._clock() >= self._share_at:
            self._share_at = self._clock() + _LOOK_SECONDS
            await self._stored.settle()
        if self._cuts and self._read_at:
            look = self._clock() >= self._look_at
            if look:
                self._look_at = self._clock() + _LOOK_SECONDS
            await self._cuts.make(look=look)

    async def _renew_slots(self) -> None:
        if self._clock() >= self._renew_at:
            self._renew_at = self._clock() + SECONDS / 3
            for key, slots in list(self._slots.items()):
                await slots.renew()
                if slots.is_idle:
                    del self._slots[key]

    def _limits_of(self, owner: Owner, model: str, of_key: Limit | None) -> Iterator[tuple[int, Limit, str]]:
        """Yield the limits that apply to a request: their index, and whose use they count."""
        for index, limit in enumerate(self._limits):
            name = name_of(limit, owner, model)
            if name is not None and fnmatchcase(model, limit.models):
                yield index, limit, name
        if of_key and (name := name_of(of_key, owner, model)):
            yield _OF_KEY, of_key, name

    def _limits_at_end(self, ended: Ended) -> list[tuple[int, Limit, str]]:
        """Return the limits that apply to a response that has ended."""
        of_key = None
        # A server of another version may have admitted it.
        with suppress(ApiError):
            of_key = self._of_keys.of(ended.owner)
        return [*self._limits_of(ended.owner, ended.response["model"], of_key)]

    def _cutting(self, owner: Owner, model: str) -> Iterator[tuple[Limit, Scope]]:
        """Yield the limits that end responses of a user and a model when they are used up."""
        for index, limit, name in self._limits_of(owner, model, None):
            if limit.cut_running and limit.enforced:
                for scope in self._scopes(index, limit, name):
                    if scope.measure.is_quota:
                        yield limit, scope

    async def _read_clock(self) -> None:
        try:
            await self._clock.read()
        except ApiError as error:
            self._note(error)
        self._read_at = self._clock()

    async def _admit_by(self, index: int, limit: Limit, name: str, owner: Owner, permit: LimitedPermit) -> None:
        if limit.running is not None:
            await self._take_slot(index, limit, name, owner, permit)
        for scope in self._scopes(index, limit, name):
            units = scope.expected
            try:
                has_room = await scope.meter.hold(units)
            except ApiError as error:
                self._note(error)
                continue
            if has_room:
                permit.add(scope, units)
            elif limit.enforced:
                self._reports.refused(limit, scope.measure.amount, name, owner, scope.meter.end)
                raise scope.measure.refusal_at_present(limit.by, scope.meter)
            if scope.is_nearly_used(limit.warn_at):
                self._reports.nearly(limit, scope.measure.amount, name, owner, scope.meter.end)

    async def _check_stored(self, limit: Limit, name: str, owner: Owner) -> None:
        """Refuse what a user, team or key stores beyond the limit."""
        assert limit.stored_bytes is not None
        try:
            size = (await self._stored.of(row_of(limit.by, name))).size
        except ApiError as error:
            self._note(error)
            return
        until = DAY.end(self._clock())
        if size >= limit.stored_bytes and limit.enforced:
            self._reports.refused(limit, "stored_bytes", name, owner, until)
            raise storage_refusal(limit, size)
        if size >= limit.warn_at * limit.stored_bytes:
            self._reports.nearly(limit, "stored_bytes", name, owner, until)

    def _add_stored(self, limits: Iterable[tuple[Limit, str]], value: object) -> None:
        """Count a JSON value as stored, until the next recount."""
        for key in {row_of(limit.by, name) for limit, name in limits if limit.stored_bytes is not None}:
            self._stored.add(key, value)

    async def _take_row(self, limit: Limit, name: str, owner: Owner, permit: LimitedPermit) -> None:
        """Admit a background response."""
        assert limit.background is not None
        now = self._clock()
        permit.expires_at = now + KEPT_SECONDS
        permit.rows.append(prefix_of(limit, name))
        try:
            row = await self._background.take(limit, name)
        except ApiError as error:
            self._note(error)
            return
        if row:
            permit.on_release.append(row.finish)
        elif limit.enforced:
            self._reports.refused(limit, "background", name, owner, MINUTE.end(now))
            raise refusal(limit)
        if row is None or row.count >= limit.warn_at * limit.background:
            self._reports.nearly(limit, "background", name, owner, MINUTE.end(now))

    async def _take_slot(self, index: int, limit: Limit, name: str, owner: Owner, permit: LimitedPermit) -> None:
        assert limit.running is not None
        key = (index, name)
        slots = self._slots.get(key)
        if slots is None:
            described = f"{limit.identity} running {name}"
            slots = self._slots[key] = Slots(self._records, self._clock, self._server, described, limit.running)
        try:
            has_room = await slots.acquire()
        except ApiError as error:
            self._note(error)
            slots.use_anyway()
            has_room = True
        if has_room:
            permit.slots.append(slots)
        elif limit.enforced:
            self._reports.refused(limit, "running", name, owner, MINUTE.end(self._clock()))
            message = f"Too many responses of {limit.whose} run at the same time: limit {limit.running}. Try again."
            raise ApiError(429, message, type="requests", code="rate_limit_exceeded", retry_after=1)

    def _scopes(self, index: int, limit: Limit, name: str) -> Iterator[Scope]:
        for measure in MEASURES:
            if (most := measure.limit(limit)) is None:
                continue
            key = (index, measure.name, name)
            scope = self._meters.get(key)
            if scope is None:
                described = f"{limit.identity} {measure.name} {name}"
                meter = Meter(self._records, self._clock, described, most, measure.window)
                scope = Scope(measure, meter)
                self._meters.set(key, scope)
            yield scope

    def _note(self, error: ApiError) -> None:
        """Log that the store does not answer: requests are admitted then, and what they use is counted later."""
        if error.status != UNAVAILABLE:
            raise error
        if self._outage.should_log(error):
            logger.warning("could not read limits, requests are admitted: %s", error)
