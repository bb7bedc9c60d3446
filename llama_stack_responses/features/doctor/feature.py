"""Examinations on a schedule, and what they have found as a card of the page."""

from __future__ import annotations

from functools import partial
from typing import Final

from ...core.types import Json
from ...feature import Card, Feature, Stack
from .report import counts_of, rows_of, speeds_of
from .schedule import Models, Schedule
from .settings import SETTINGS
from .stored_reports import Stored, StoredReports

_MAX_SECTIONS: Final = 100


def open_feature(stack: Stack) -> Feature:
    """Return the schedule and its card; nothing if there is no schedule."""
    settings = SETTINGS.of(stack.config)
    if not settings.is_on:
        return Feature()
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
    return {
        "title": stored.model,
        "at": report.at if report else stored.at,
        "facts": [*(counts_of(report) if report else ()), *(speeds_of(report) if report else ())],
        "trouble": stored.trouble or None,
        "columns": ["Check", "Result", "What happens"],
        "rows": [list(each) for each in rows_of(report)] if report else [],
        "entry": report.profile if report else None,
    }
