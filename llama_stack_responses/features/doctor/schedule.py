"""Examinations of a stack's models by its servers, after a start and at intervals, and the card with their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from ...chat.inference import Inference
from ...core.card_sections import section
from ...core.errors import ApiError
from ...core.types import Json
from ...feature import Card, Feature, Stack
from ...lifecycle.periodic import Periodic
from ...logs import get_logger
from .answer import Bounds
from .examination import Clock, Examination, Subject
from .report import Report, counts_of, escaped, rows_of, speeds_of
from .settings import Doctor
from .stored_reports import Stored, StoredReports

logger = get_logger(__name__)

_LOOK_SECONDS: Final = 30.0
"""Seconds between two looks for models that are to be examined."""
_RECENT_SECONDS: Final = 3_600.0
"""An examination by another server so many seconds before a start is as good as one after it."""
_RETRY_SECONDS: Final = 600.0
"""Seconds after which a model that could not be examined is tried again."""
_MAX_MODELS: Final = 200
_MAX_SECTIONS: Final = 100

type Models = Callable[[], Awaitable[Sequence[str]]]
"""Returns the names of the models that the current user may use."""


class Schedule(Periodic):
    """Examines the models of a stack, one after another; of all servers of a store, one examines a model.

    Args:
        settings: which models, and when.
        inference: asks them.
        models: returns their names.
        reports: keeps the reports.
        look_seconds: interval between two looks for models that are to be examined.
    """

    def __init__(
        self,
        settings: Doctor,
        inference: Inference,
        models: Models,
        reports: StoredReports,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        super().__init__(self.look, "could not examine the models", logger, look_seconds)
        self._settings, self._inference, self._models, self._reports = settings, inference, models, reports
        self._started: float | None = None

    async def look(self) -> None:
        """Examine the models that are to be examined now.

        Raises:
            ApiError: 503, the store does not answer.
        """
        now = await self._reports.now()
        self._started = self._started or now
        for model in self._chosen(await self._models()):
            if await self._reports.claim(model, self._oldest(now), now - _RETRY_SECONDS):
                await self._examine(model)

    def _chosen(self, models: Sequence[str]) -> list[str]:
        patterns = self._settings.models
        return [name for name in models if any(fnmatchcase(name, each) for each in patterns)][:_MAX_MODELS]

    def _oldest(self, now: float) -> float:
        """Return the time before which an examination does not count any more."""
        assert self._started is not None
        settings = self._settings
        of_start = self._started - _RECENT_SECONDS if settings.at_start else 0.0
        return max(of_start, now - settings.every_hours * 3600 if settings.every_hours else 0.0, 1.0)

    async def _examine(self, model: str) -> None:
        try:
            report = await self._report(model)
        except asyncio.CancelledError:
            # Another server, or this one after its restart, may begin at once.
            await self._reports.write(Stored(model))
            raise
        except ApiError as error:
            logger.warning("cannot examine a model: '%s': %s", model, error)
            await self._reports.write(Stored(model, await self._reports.now(), trouble=error.message))
            return
        await self._reports.write(Stored(model, report.at, report=report))
        logger.info("a model was examined: '%s': %s", model, ", ".join(counts_of(report)))

    async def _report(self, model: str) -> Report:
        server = await self._inference.server_of(model)
        length = await self._inference.context_length(model)
        subject = Subject(server.provider if server else "", model, escaped(model), length)
        now = await self._reports.now()
        clock = Clock(time.monotonic, lambda: now)
        return await Examination(self._inference, subject, Bounds(self._settings.seconds), clock).run()


def open_schedule(stack: Stack, settings: Doctor) -> Feature:
    """Return the schedule of these settings, and its card."""
    reports = StoredReports(stack.records)
    schedule = Schedule(settings, stack.inference, stack.models, reports)
    card = Card("Model servers", partial(_sections, stack.models, reports))
    return Feature(cards=[card], start=schedule.start, close=schedule.stop)


async def _sections(models: Models, reports: StoredReports) -> list[Json]:
    """Return a section for each model that the current user may use, by its name."""
    visible = frozenset(await models())
    found = [stored async for stored in reports.all() if stored.model in visible and (stored.report or stored.trouble)]
    return [_section(each) for each in sorted(found, key=lambda each: each.model)[:_MAX_SECTIONS]]


def _section(stored: Stored) -> Json:
    report = stored.report
    return section(
        stored.model,
        [*counts_of(report), *speeds_of(report)] if report else [],
        at=report.at if report else stored.at,
        trouble=stored.trouble,
        columns=("Check", "Result", "What happens"),
        rows=rows_of(report) if report else (),
        entry=report.profile if report else None,
    )
