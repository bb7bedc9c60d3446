"""Decode the arguments of a call, which the model wrote: their size and shape are the model server's."""

from __future__ import annotations

from typing import Any, Final

import orjson

from .json_values import fits

_SMALL_CHARACTERS: Final = 16_384
"""Characters of arguments that are decoded without looking."""
_MAX_CHARACTERS: Final = 2**20
_MAX_VALUES: Final = 16_384
_MAX_DEPTH: Final = 64


def decoded_arguments(arguments: str) -> Any:
    """Return the arguments as a JSON value.

    Raises:
        ValueError: they are not JSON, or too large to be decoded in the event loop: longer than 1 MiB, or of more than
            16,384 values or 64 levels.
    """
    if len(arguments) > _SMALL_CHARACTERS:
        if len(arguments) > _MAX_CHARACTERS:
            raise ValueError("the arguments are too long")
        if not fits(arguments.encode(), _MAX_VALUES, _MAX_DEPTH):
            raise ValueError("the arguments have too many values")
    return orjson.loads(arguments)
