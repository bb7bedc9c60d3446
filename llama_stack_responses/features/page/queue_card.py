"""What waits in the queue, by class, and which jobs are stalled, for the view of what runs now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ...core.card_sections import section, span
from ...core.owner import Owner
from ...core.types import Json
from ...feature import Card
from ...jobs.job import Job
from ...jobs.queue import Backlog
from ...jobs.work_class import WorkClass
from .shared_values import SharedValues

_NAMES: Final = {
    WorkClass.PRIORITY: "Priority",
    WorkClass.BACKGROUND: "Background",
    WorkClass.WINDOW: "Completion windows",
    WorkClass.FLEX: "Flex",
    WorkClass.BATCH: "Batches",
}
_MAX_STALLED: Final = 50
_SHARED_SECONDS: Final = 5.0
"""All users together have the queue read at most once in this time."""


class Jobs(Protocol):
    """Knows what waits and what is stalled."""

    async def backlog(self) -> Mapping[WorkClass, Backlog]:
        """Return what waits in each class."""
        ...

    async def stalled(self) -> Mapping[str, str]:
        """Return the workers of the jobs that are held by one without a lease, by response id."""
        ...

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these responses that have not ended, by response id."""
        ...


def queue_card(jobs: Jobs, current_user: Callable[[], Owner]) -> Card:
    """Return the card of what waits of all users, with the stalled jobs, of which only those of the user are named."""
    backlogs: SharedValues[Mapping[WorkClass, Backlog]] = SharedValues(_SHARED_SECONDS)
    held: SharedValues[Mapping[str, str]] = SharedValues(_SHARED_SECONDS)

    async def sections() -> list[Json]:
        backlog, stalled = await backlogs.get("", jobs.backlog), await held.get("", jobs.stalled)
        return [*_waiting(backlog), *await _stalled(jobs, stalled, current_user())]

    return Card("Queue", sections)


def _waiting(backlog: Mapping[WorkClass, Backlog]) -> list[Json]:
    waiting = {kind: each for kind, each in backlog.items() if each.length}
    if not waiting:
        return []
    total = sum(each.length for each in waiting.values())
    rows = [[_NAMES[kind], str(each.length), span(each.age)] for kind, each in waiting.items()]
    facts = [f"{total} wait", f"the longest for {span(max(each.age for each in waiting.values()))}"]
    return [section("Waiting responses", facts, columns=["class", "waiting", "longest for"], rows=rows)]


async def _stalled(jobs: Jobs, stalled: Mapping[str, str], user: Owner) -> list[Json]:
    if not stalled:
        return []
    own = await jobs.find_many(list(stalled)[:_MAX_STALLED])
    states = {each: job.state for each, job in own.items() if job.state.owner.identity == user.identity}
    rows = [[each, stalled[each], str(state.tries)] for each, state in states.items()]
    trouble = "Their workers have lost their leases: other servers continue them, or end them as failed."
    facts = [f"{len(stalled)} of all users"]
    return [section("Stalled jobs", facts, trouble=trouble, columns=["response", "worker", "tries"], rows=rows)]
