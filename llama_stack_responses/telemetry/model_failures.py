"""Failures of model servers: a log line and a metric for each, with the provider and the cause."""

from __future__ import annotations

from typing import Final

from ..core.errors import ApiError, Upstream
from ..logs import get_logger
from .metrics import Labels, Metric, Recorder

logger = get_logger(__name__)

FAILURES: Final = Metric("llama_stack_responses.model_server.failures", "{failure}", "Failed requests to model servers")

_MODEL_CHARACTERS: Final = 200
"""Maximum characters of a model's name in the line."""


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
