"""Results of several checks together, failed checks, and the texts of refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.errors import ApiError
from ...core.moderation_results import Side, result
from ...core.types import Json


def merged(results: Sequence[Json]) -> Json:
    """Merge results: each category has its highest score."""
    scores: dict[str, float] = {}
    for each in results:
        for name, score in each["category_scores"].items():
            scores[name] = max(score, scores.get(name, 0.0))
    models = sorted({each["model"] for each in results})
    return result(", ".join(models), scores, any(each["flagged"] for each in results), _flagged_for(results))


def failure(error: ApiError) -> Json:
    """Return the result of a failed check."""
    return {"type": "error", "code": error.code or "moderation_unavailable", "message": error.message}


def refusal(side: Side, moderation: Json) -> str:
    """Return the text that the client reads in place of the held-back output."""
    what = "This request was blocked: its input" if side == "input" else "This answer was cut off: its next part"
    categories = ", ".join(_flagged_for([moderation]))
    return f"{what} was flagged by the moderation{f' ({categories})' if categories else ''}."


def _flagged_for(results: Iterable[Json]) -> list[str]:
    return sorted({name for each in results for name, is_flagged in each["categories"].items() if is_flagged})
