"""The log lines of responses that have ended, and of requests that were refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..core.errors import ApiError
from ..logs import ENDED, get_logger

logger = get_logger(ENDED)

_MODEL_CHARACTERS: Final = 200
"""Maximum characters of a model's name in the line."""


def log_ended(
    response: Mapping[str, Any], seconds: float, error: ApiError | None = None, *, what: str = "response"
) -> None:
    """Log how a response ended, with its ids, model, tokens and duration as fields.

    The model's name is the field `model_name`: OGX redacts every field `model`.

    Args:
        response: the response in its final state.
        seconds: how long this server worked on it.
        error: why it failed, if it did. Its code says more than that of the response, which is one of OpenAI's.
        what: `response`, or the kind of another result.
    """
    usage, shown = response["usage"] or {}, response.get("error")
    fields = {
        "response_id": response["id"],
        "model_name": str(response["model"])[:_MODEL_CHARACTERS],
        "status": response["status"],
        "input_tokens": usage.get("input_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "milliseconds": round(seconds * 1000),
        **({"error": (error and error.code) or shown["code"]} if shown else {}),
    }
    logger.info("%s %s", what, response["status"], extra=fields)


def log_refused(error: ApiError) -> None:
    """Log that a request was answered with an error and has no response.

    The error's message and parameter are left out: they may quote the request.
    """
    logger.info("request refused", extra={"http_status": error.status, "error": error.code or error.type})
