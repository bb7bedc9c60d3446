"""Records with hooks for tests."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import override

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import Condition, Floored, Op, Record, Records, get_by_calls
from llama_stack_responses.store.wrapped import WrappedRecords


def settled(*, applied: bool) -> Callable[[], Awaitable[bool]]:
    """Return what settles a commit that was applied or not."""

    async def settle() -> bool:
        return applied

    return settle


class WatchedRecords(WrappedRecords):
    """Forwards every call, with hooks before and after it; a hook may raise, or do something in between.

    Args:
        records: the wrapped records.
        before: called with the name of each call before it.
        after: called with the name of each call after it.

    Attributes:
        away: whether the store is unreachable: every call then raises a 503.
    """

    def __init__(
        self,
        records: Records,
        *,
        before: Callable[[str], Awaitable[object]] | None = None,
        after: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(records)
        self._before = before
        self._after = after
        self.away = False

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        return await self._pass("get_many", lambda: self._records.get_many(keys, max_bytes=max_bytes))

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        if isinstance(self._records, Floored):
            return await self._pass(
                "get_many", lambda: super(WatchedRecords, self).get_or_floors(keys, floors, max_bytes=max_bytes)
            )
        return await get_by_calls(self, keys, floors, max_bytes=max_bytes)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await self._pass("commit", lambda: self._records.commit(ops, conditions))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        return await self._pass(
            "range", lambda: self._records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        )

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        read = partial(super().range_in, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        return await self._pass("range", read)

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        return await self._pass("range", lambda: super(WatchedRecords, self).filled_in(number, ranges))

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        read = partial(super().ranges_in, number, ranges, limit=limit, reverse=reverse)
        return await self._pass("range", read)

    async def apply_noted(self, number: int) -> None:
        await self._pass("apply_noted", lambda: super(WatchedRecords, self).apply_noted(number))

    async def now(self) -> float:
        return await self._pass("now", self._records.now)

    async def sweep(self, now: float) -> int:
        return await self._pass("sweep", lambda: self._records.sweep(now))

    async def size(self) -> int | None:
        return await self._pass("size", self._records.size)

    async def _pass[Result](self, name: str, call: Callable[[], Awaitable[Result]]) -> Result:
        if self._before:
            await self._before(name)
        if self.away:
            raise ApiError(503, "The response store cannot be reached.")
        result = await call()
        if self._after:
            await self._after(name)
        return result


class FailingOver(WatchedRecords):
    """Records whose primary dies once: another one, which may lack what it had, takes its place.

    Args:
        lost: what the first primary has.
        other: what the other one has.
        before, after: the names of calls before or after which it dies; `replicated` is the wait for replicas.

    Attributes:
        server: the name of the primary, `first` or `second`.
    """

    def __init__(
        self, lost: Records, other: Records, *, before: Collection[str] = (), after: Collection[str] = ()
    ) -> None:
        super().__init__(lost, before=self._dying(before), after=self._dying(after))
        self._other, self.server = other, "first"

    def die(self) -> None:
        """Let the other primary take over."""
        self._records, self.server = self._other, "second"

    @override
    def server_of(self, tag: int) -> str:
        return self.server

    @override
    async def replicated(self, tag: int, server: str) -> bool:
        async def is_there() -> bool:
            return server == self.server

        return await self._pass("replicated", is_there)

    def _dying(self, calls: Collection[str]) -> Callable[[str], Awaitable[None]]:
        async def die(name: str) -> None:
            if name in calls:
                self.die()

        return die


def just_before_a_commit(records: Records, meddle: Callable[[], Awaitable[object]]) -> Records:
    """Run `meddle` just before the next commit."""
    waiting = [meddle]

    async def before(name: str) -> None:
        if name == "commit" and waiting:
            await waiting.pop()()

    return WatchedRecords(records, before=before)
