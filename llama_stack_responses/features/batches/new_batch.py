"""Checks what requests say of batches."""

from __future__ import annotations

from typing import Any, Final

from ...core.shapes import Location, integer, metadata, object_of, one_of, schema_of, string

RESPONSES: Final = "/v1/responses"
ENDPOINTS: Final = (RESPONSES, "/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""The endpoints that the lines of a batch may name."""

_HOUR_SECONDS: Final = 3_600
_MONTH_SECONDS: Final = 2_592_000

_CHECK: Final = object_of(
    {
        "input_file_id": string(1, 128),
        "endpoint": one_of(*ENDPOINTS),
        "completion_window": one_of("24h"),
        "metadata": metadata,
        "output_expires_after": object_of(
            {"anchor": one_of("created_at"), "seconds": integer(_HOUR_SECONDS, _MONTH_SECONDS)}, "anchor", "seconds"
        ),
    },
    "input_file_id",
    "endpoint",
    "completion_window",
)

SCHEMA: Final = schema_of(_CHECK)
"""The schema of the request."""


def checked_batch(body: Any) -> dict[str, Any]:
    """Return what a request says of a new batch.

    Raises:
        ApiError: 400, a value cannot be used; `param` names it.
    """
    checked: dict[str, Any] = _CHECK(body, Location("", refuse_unknown=True))
    return checked
