"""Text for requests and answers."""

from __future__ import annotations

import random
import re
from pydoc_data.topics import topics
from typing import Any


def texts(count: int, size: int, seed: int = 1) -> list[str]:
    """Return `count` texts of `size` characters: random words from Python's manual, with their frequency there.

    They compress about as well as English, and no two share more than words.
    """
    words = re.findall(r"[A-Za-z]+", " ".join(topics[name] for name in sorted(topics)))
    draw = random.Random(seed)  # noqa: S311 (must be reproducible)
    return [" ".join(draw.choices(words, k=size))[:size] for _ in range(count)]


def pieces(text: str) -> list[str]:
    """Split a text as a model streams it, a word at a time."""
    return re.findall(r"\s*\S+|\s+$", text)


def tools(count: int, size: int) -> list[dict[str, Any]]:
    """Return `count` function tools whose descriptions have `size` characters each."""
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return [
        {"type": "function", "name": f"tool_{number}", "description": description, "parameters": parameters}
        for number, description in enumerate(texts(count, size, seed=3))
    ]
