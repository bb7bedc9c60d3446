"""What runs batches, with the settings `batches`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from ...concurrency.fair_budget import FairBudget
from ...core.setting_values import WrongConfiguration
from ...feature import Feature, PageView, RouteAdmission, Stack
from ...inputs.large_files import UploadedFiles
from ...jobs.worker import WorkerLimits
from ...service.idempotency import IdempotencyKeys
from ...service.responses import OpenAIResponsesImpl
from .dispatcher import Dispatcher
from .ends import LineEnds, Tries
from .model_slots import ModelSlots
from .parts import Parts
from .routes import BatchRoutes, batches_router
from .rows import WORK
from .settings import Batches
from .stored_batches import StoredBatches

_DAY_SECONDS: Final = 86_400.0
_MEMORY_BYTES: Final = 2**28
"""Bytes that the lines of all batches may take while they begin; a line that takes more begins alone."""


def open_batches(stack: Stack, settings: Batches) -> Feature:
    """Return what runs batches, and their routes, in place of the host's.

    Raises:
        WrongConfiguration: the stack has no Files API, or no transactional store.
    """
    files = _files_of(stack)
    files.take_uploads(settings.file_bytes)
    batches = StoredBatches(stack.records, settings.retention_days * _DAY_SECONDS, stack.events)
    ends = LineEnds(Tries(settings.tries, settings.retry_seconds), stack.telemetry)
    dispatcher, limits_of_work = Dispatcher(stack.records), WorkerLimits.of(stack.config.background)

    def connect(impl: OpenAIResponsesImpl) -> None:
        dispatcher.parts = Parts(
            impl,
            stack.plain_inference,
            FairBudget(limits_of_work.concurrency_deferred, limits_of_work.concurrency_per_user),
            ModelSlots(limits_of_work.of_model),
            FairBudget(_MEMORY_BYTES),
            batches,
            impl.jobs.watched(WORK),
            IdempotencyKeys(stack.records),
            files,
            stack.sealer,
            settings,
            stack.config.share_of,
            stack.telemetry,
        )

    def routes(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        assert dispatcher.parts, "it is connected before its routes are made"
        return batches_router(BatchRoutes(impl, dispatcher.parts, dispatcher.look, limits))

    return Feature(
        connect=connect,
        routes=[routes],
        replaces=["batches"],
        views=[PageView("batches", "Batches", "list", "b")],
        at_end=ends.ops,
        on_end=dispatcher.ended,
        start=dispatcher.start,
        close=dispatcher.stop,
    )


def _files_of(stack: Stack) -> UploadedFiles:
    """Return the file store of a stack that can have batches.

    Raises:
        WrongConfiguration: it cannot.
    """
    if stack.large_files is None:
        raise WrongConfiguration(
            "'batches' needs the API 'files' in the stack's configuration: add it, with a provider"
        )
    if not stack.records.transactional:
        raise WrongConfiguration(
            "'batches' needs a transactional store: set 'store' to 'sqlite', 'redis', 'cluster' or 'postgres'"
        )
    return stack.large_files
