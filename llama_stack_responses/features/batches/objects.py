"""Batches and lines of their output as the API shows them: `batch` of OpenAI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...core.errors import ApiError, UnusableAnswerError
from ...core.types import Json
from ...feature import Ended
from .rows import Batch, Counted, Line, Result

TIMES: Final = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_NEVER_RUN: Final = {
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "failed": ("batch_failed", "This request was not executed because the batch failed."),
    "completed": ("request_cancelled", "The response of this request was cancelled or deleted before it had ended."),
}


def batch_object(batch: Batch, ended: Iterable[Counted] = ()) -> Json:
    """Return a batch; `ended` are lines that have ended and are not added to it yet."""
    counted = [*ended]
    usage = [sum(tokens) for tokens in zip(batch.usage, *(each.usage for each in counted), strict=True)]
    completed = batch.completed + sum(each.completed for each in counted)
    failed = batch.failed + sum(not each.completed for each in counted)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        **{name: batch.times.get(name) for name in TIMES},
        "request_counts": {"total": batch.total, "completed": completed, "failed": failed},
        "usage": {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": usage[1]},
            "output_tokens": usage[2],
            "output_tokens_details": {"reasoning_tokens": usage[3]},
            "total_tokens": usage[4],
        },
        "metadata": batch.metadata,
    }


def line_object(line: Line, custom_id: str, result: Result | None, response: Json | None, end: str) -> Json:
    """Return a line of the output file or the error file.

    Args:
        line: the line.
        custom_id: what the client calls it.
        result: what it ended with; None if it was never run.
        response: its response; None if that is not stored, or it has none.
        end: how the batch ended.
    """
    shown: Json = {"id": line.request_id, "custom_id": custom_id, "response": None, "error": None}
    if result is None or result.status == 0 or (response is None and result.body is None):
        code, message = _NEVER_RUN[end]
        return shown | {"error": {"code": code, "message": message}}
    body = response if result.body is None else result.body
    return shown | {"response": {"status_code": result.status, "request_id": line.request_id, "body": body}}


def result_of(ended: Ended) -> Result:
    """Return the result of a line whose response has ended: what its request would have got as the answer."""
    response, error = ended.response, ended.error
    stored = bool(response.get("store", True))
    if error and not isinstance(error, UnusableAnswerError):
        return Result(response["id"], stored, error.status, error.body())
    return Result(response["id"], stored, 0 if response["status"] == "cancelled" else 200)


def counted_of(response: Json, result: Result) -> Counted:
    """Return in numbers a line whose response has ended."""
    usage: Any = response.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens", 0)
    names = ("input_tokens", "output_tokens", "total_tokens")
    given, made, total = (usage.get(name, 0) for name in names)
    return Counted(result.status == 200, (given, cached, made, reasoning, total))


def counted_of_answer(answer: Json) -> Counted:
    """Return in numbers a line with the answer to a chat completion, a completion or embeddings."""
    usage: Any = answer.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    given, made, total = (usage.get(f"{name}_tokens") or 0 for name in ("prompt", "completion", "total"))
    return Counted(True, (given, cached, made, reasoning, total))


def refusal(error: ApiError) -> Result:
    """Return the result of a line whose request was refused."""
    return Result(None, False, error.status, error.body())
