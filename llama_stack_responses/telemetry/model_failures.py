"""Failures of model servers: a log line and a metric for each, with the provider and the cause."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ..core.errors import ApiError, Cause, Upstream
from ..core.lru_cache import LruCache
from ..logs import get_logger
from .metrics import Labels, Metric, Recorder

logger = get_logger(__name__)

FAILURES: Final = Metric("llama_stack_responses.model_server.failures", "{failure}", "Failed requests to model servers")

_MODEL_CHARACTERS: Final = 200
"""Maximum characters of a model's name in the line."""


_MAX_KEPT: Final = 512
"""Maximum number of models, and of providers, whose last failure is kept."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failure of a model server with a model.

    Attributes:
        at: when it happened, in seconds since the epoch.
        cause, status: as of `Upstream`.
        count: how many there were since the start of this process.
    """

    at: float
    cause: Cause
    status: int | None
    count: int


class LastFailures:
    """The last failures of model servers that this process has asked."""

    def __init__(self) -> None:
        self._by_model: LruCache[tuple[str, str], LastFailure] = LruCache(_MAX_KEPT)
        self._by_provider: LruCache[str, LastFailure] = LruCache(_MAX_KEPT)

    def add(self, provider: str, model: str, failure: Upstream) -> None:
        """Note a failure."""
        _add(self._by_model, (provider, model), failure)
        _add(self._by_provider, provider, failure)

    def of(self, provider: str, model: str) -> LastFailure | None:
        """Return the last failure of a provider with a model; None for none."""
        return self._by_model.peek((provider, model))

    def of_provider(self, provider: str) -> LastFailure | None:
        """Return the last failure of a provider with any model; None for none."""
        return self._by_provider.peek(provider)


def _add[Key](failures: LruCache[Key, LastFailure], key: Key, failure: Upstream) -> None:
    before = failures.get(key)
    failures.set(key, LastFailure(time.time(), failure.cause, failure.status, before.count + 1 if before else 1))


def failure_of(error: BaseException) -> Upstream | None:
    """Return the failure of a model server that an error of a model round reports; None if it reports another one."""
    if not isinstance(error, ApiError) or error.upstream:
        return error.upstream if isinstance(error, ApiError) else None
    return Upstream("invalid_answer") if error.status == 502 else None


def labels_of(failure: Upstream) -> Labels:
    """Return the attributes of metrics and spans: the cause, and the status of the model server, if it sent one."""
    status = {"http.response.status_code": failure.status} if failure.status else {}
    return {"llama_stack_responses.cause": failure.cause, **status}


def report(failure: Upstream, provider: str, model: str, record: Recorder) -> None:
    """Log and count a failure. The error's message is left out: it may quote the request.

    Args:
        provider: the provider of the model server.
        model: the model.
        record: counts it.
    """
    record(1, {"gen_ai.provider.name": provider, **labels_of(failure)})
    logger.warning(
        "model server failed",
        extra={
            "provider": provider,
            "model_name": model[:_MODEL_CHARACTERS],
            "cause": failure.cause,
            **({"upstream_status": failure.status} if failure.status else {}),
        },
    )
