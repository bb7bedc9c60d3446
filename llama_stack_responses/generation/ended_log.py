"""The log line of a response that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..logs import ENDED, get_logger

logger = get_logger(ENDED)

_MOST: Final = 200
"""Maximum characters of a model's name in the line."""


def log_ended(response: Mapping[str, Any], seconds: float, *, what: str = "response") -> None:
    """Log how a response ended, with its ids, model, tokens and duration as fields.

    The model's name is the field `model_name`: OGX redacts every field `model`.

    Args:
        response: the response in its final state.
        seconds: how long this server worked on it.
        what: `response`, or the kind of another result.
    """
    usage, error = response["usage"] or {}, response.get("error")
    fields = {
        "response_id": response["id"],
        "model_name": str(response["model"])[:_MOST],
        "status": response["status"],
        "input_tokens": usage.get("input_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "milliseconds": round(seconds * 1000),
        **({"error": error["code"]} if error else {}),
    }
    logger.info("%s %s", what, response["status"], extra=fields)
