"""Results of moderation, in the form of `openai.types.responses.response.Moderation`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Final, Literal

from .types import Json

Side = Literal["input", "output"]
Kind = Literal["moderation", "guardrails"]
"""The fields of a request that ask for checks: with a moderation model, and with a guardrail of the stack."""

_MAX_CATEGORIES: Final = 128
_NAME_CHARACTERS: Final = 128
"""Maximum categories of one result, and characters of their names."""


def result(model: str, scores: dict[str, float], flagged: bool, categories: Iterable[str] = ()) -> Json:
    """Return the result of checking a text.

    Args:
        model: the model that checked it.
        scores: by category, from 0 to 1.
        flagged: whether the text is flagged.
        categories: the categories for which it is flagged.
    """
    for_these = {str(name)[:_NAME_CHARACTERS] for name in islice(categories, _MAX_CATEGORIES)}
    scores = {str(name)[:_NAME_CHARACTERS]: _score(score) for name, score in islice(scores.items(), _MAX_CATEGORIES)}
    named = sorted({*scores, *for_these})
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": flagged,
        "categories": {name: name in for_these for name in named},
        "category_scores": {name: scores.get(name, float(name in for_these)) for name in named},
        "category_applied_input_types": {name: ["text"] for name in named},
    }


def _score(score: float) -> float:
    """Return a score that JSON can carry."""
    return score if math.isfinite(score) else 0.0


NOT_YET: Final = {"type": "error", "code": "not_moderated", "message": "The output has not been moderated yet."}
"""Replaces the output's result until it is known."""


NO_OUTPUT: Final = {
    "type": "error",
    "code": "not_moderated",
    "message": "The model got no request, so there is no output to moderate.",
}
"""Replaces the output's result if the input was refused."""


def before_round(moderation: Json | None) -> Json | None:
    """Return a response's `moderation` as it was before the model round."""
    if moderation is None or moderation["output"] == NO_OUTPUT:
        return moderation
    return moderation | {"output": NOT_YET}
