"""What a model reads of images that a tool generated: names, by which it can refer to them."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

GENERATE: Final = "generate_image"
"""The function that the model calls."""
_NAME_CHARACTERS: Final = 6


def image_name(item_id: str) -> str:
    """Return the name of the image of this call: short, since models copy it, and the same in every turn."""
    return f"image-{sha256(item_id.encode(errors='replace')).hexdigest()[:_NAME_CHARACTERS]}"


def generated(item_id: str) -> str:
    """Return the result of this call for the model."""
    return f"The image was generated, and the user sees it. Its name is '{image_name(item_id)}'."
