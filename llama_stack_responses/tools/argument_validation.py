"""Validation of a call's arguments against the schema of an OpenAI item."""

from __future__ import annotations

from typing import Any

from ..core.decoded_arguments import decoded_arguments
from ..core.errors import ApiError
from ..core.shapes import Check, Location


def validated_arguments(arguments: str, shape: Check) -> Any | None:
    """Decode arguments and validate them with `shape`; None if they are invalid."""
    try:
        return shape(decoded_arguments(arguments), Location(""))
    except (ValueError, ApiError):
        return None
