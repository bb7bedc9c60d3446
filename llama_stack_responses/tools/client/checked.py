"""Arguments of a call, held to the shape that an item of OpenAI's has."""

from __future__ import annotations

from typing import Any

import orjson

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.schema.shapes import DEFAULT_LIMITS, At, Check


def checked(arguments: str, shape: Check) -> Any | None:
    """The decoded arguments as `shape` keeps them; None if they are not of that shape."""
    try:
        return shape(orjson.loads(arguments), At("", DEFAULT_LIMITS))
    except (ValueError, ApiError):
        return None
