"""Counts and limits what responses use, and reports it, with the settings `usage`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter

from ...feature import Ended, Feature, PageView, RouteAdmission, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.decoder import Decoder
from ...store.placement import Placement
from ...store.records import Ensure, Op, partitions_of
from .counted import counts_of, dimensions_of
from .limits.on_demand import LimitsOnDemand
from .naming import Bounds
from .prices import Prices
from .reading import Reading
from .routes import usage_router
from .rows import encode_pending, pending_key
from .settings import Usage
from .tables import Tables
from .visibility import Visibility


def open_usage(stack: Stack, settings: Usage, limits: LimitsOnDemand) -> Feature:
    """Return what counts usage, limits it and reports it."""
    decoder = Decoder(stack.config.limits.decoding_bytes)
    bounds = Bounds(settings.users, settings.values_per_user)
    tables = Tables(stack.records, decoder, bounds, settings.retention_days)
    return Feature(
        admit=limits.admit,
        admit_items=limits.admit_items,
        on_end=limits.count,
        views=[PageView("usage", "Usage", "chart", "u", {"metadata_key": settings.metadata_key})],
        routes=[partial(_routes, stack, settings, Reading(stack.records, decoder))],
        at_end=partial(_at_end, settings.metadata_key, Placement(partitions_of(stack.records)), limits),
        connect=lambda impl: tables.work_with(impl.jobs.watched),
        start=partial(_start, tables, limits),
        close=partial(_stop, tables, limits),
    )


def _at_end(metadata_key: str | None, placement: Placement, limits: LimitsOnDemand, ended: Ended) -> Sequence[Op]:
    return [*count(metadata_key, placement, ended), *limits.ended_ops(ended)]


def _start(tables: Tables, limits: LimitsOnDemand) -> None:
    tables.start()
    limits.start()


async def _stop(tables: Tables, limits: LimitsOnDemand) -> None:
    await tables.stop()
    await limits.stop()


def _routes(
    stack: Stack,
    settings: Usage,
    reading: Reading,
    _: OpenAIResponsesImpl,
    limits: RouteAdmission,
) -> APIRouter:
    prices = Prices(settings.prices, settings.currency)
    visibility = Visibility(stack.config.roles)
    return usage_router(reading, prices, visibility, stack.current_user, limits)


def count(metadata_key: str | None, placement: Placement, ended: Ended) -> Sequence[Op]:
    """Return the op that counts what a response has used, where its owner's usage is."""
    value = encode_pending(dimensions_of(ended, metadata_key), counts_of(ended))
    # It replaces nothing, so nothing is looked up that it would.
    return [Ensure(pending_key(ended.at, ended.response["id"], placement.of_owner(ended.owner)), value)]
