"""Moderation: the checks that a request selects, their results, and the refusals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from .errors import ApiError
from .schema.items import ANSWERS
from .schema.request import CreateRequest
from .types import Json

Mode = Literal["score", "block"]
Kind = Literal["moderation", "guardrails"]
Side = Literal["input", "output"]

_MOST_CATEGORIES: Final = 128
_LONGEST_NAME: Final = 128
"""Maximum categories of one result, and characters of their names."""
_ANSWERED: Final = frozenset(ANSWERS.values())
_TEXTS: Final = ("text", "refusal", "output", "content", "stdout", "stderr")
"""Keys that hold text in items from outside."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The checks that a request selects.

    Attributes:
        kind: the request's field: `moderation` checks with models, `guardrails` with those of the stack.
        names: the checks to run, all of them; None is the stack's default one.
        input, output: whether flagged text is only reported (`score`) or held back (`block`).
    """

    kind: Kind
    names: Sequence[str | None]
    input: Mode
    output: Mode


def policy_of(request: CreateRequest) -> Policy | None:
    """Return the request's policy; None if nothing is to be checked."""
    if request.guardrails:
        return Policy("guardrails", request.guardrails, "block", "block")
    if not request.moderation:
        return None
    modes = request.moderation.get("policy") or {}
    asked: dict[Side, Mode] = {side: modes.get(side, {}).get("mode", "score") for side in ("input", "output")}
    return Policy("moderation", [request.moderation["model"]], **asked)


# Results for the input and the output, in the form of `openai.types.responses.response.Moderation`.


def result(model: str, scores: dict[str, float], flagged: bool, categories: Iterable[str] = ()) -> Json:
    """Return the result of checking a text.

    Args:
        model: the model that checked it.
        scores: by category, from 0 to 1.
        flagged: whether the text is flagged.
        categories: the categories for which it is flagged.
    """
    for_these = {str(name)[:_LONGEST_NAME] for name in islice(categories, _MOST_CATEGORIES)}
    scores = {str(name)[:_LONGEST_NAME]: _score(score) for name, score in islice(scores.items(), _MOST_CATEGORIES)}
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


NOT_YET: Final = {"type": "error", "code": "not_moderated", "message": "The output has not been moderated yet."}
"""Replaces the output's result until it is known."""

NO_OUTPUT: Final = {
    "type": "error",
    "code": "not_moderated",
    "message": "The model was not asked, so there is no output to moderate.",
}
"""Replaces the output's result if the input was refused."""


def before_round(moderation: Json | None) -> Json | None:
    """Return a response's `moderation` as it was before the model round."""
    if moderation is None or moderation["output"] == NO_OUTPUT:
        return moderation
    return moderation | {"output": NOT_YET}


def refusal(side: Side, found: Json) -> str:
    """Return the text that the client reads in place of the held-back output."""
    what = "This request was blocked: its input" if side == "input" else "This answer was cut off: what came next"
    categories = ", ".join(_flagged_for([found]))
    return f"{what} was flagged by the moderation{f' ({categories})' if categories else ''}."


def _flagged_for(results: Iterable[Json]) -> list[str]:
    return sorted({name for each in results for name, is_flagged in each["categories"].items() if is_flagged})


# Which texts are checked, and which items no later model sees


def asked_texts(request: CreateRequest, items: Sequence[Json]) -> list[str]:
    """Return the texts of a request: of its prompt's variables, its messages and its outputs of calls.

    Args:
        items: its input with references resolved. Input that was refused earlier is left out: no model will see it.
    """
    variables = (request.prompt or {}).get("variables") or {}
    said = [item for item in without_refused(items) if _is_said(item)]
    return [text for text in _texts([*variables.values(), *said]) if text.strip()]


def made_texts(output: Iterable[Json]) -> list[str]:
    """Return the texts that a model made: messages, reasoning, the arguments of calls."""
    keys = ("content", "summary", "arguments", "input", "code")
    return [text for item in output for key in keys for text in _texts(item.get(key)) if text.strip()]


def without_refused(items: Sequence[Json]) -> list[Json]:
    """Return the items without input that was refused before a model answered, so that no later model sees it either.

    This is the input before a message that only refuses and is incomplete: the user's messages, and outputs of calls,
    with their calls unless these have other outputs.
    """
    hidden: set[int] = set()
    for number, item in enumerate(items):
        if _is_mere_refusal(item):
            hidden.add(number)
            hidden.update(_led_to(items, number))
    if not hidden:
        return list(items)
    shown = [item for number, item in enumerate(items) if number not in hidden]
    answered = {item["call_id"] for item in shown if item["type"] in _ANSWERED and "call_id" in item}
    lost = {items[number]["call_id"] for number in hidden if "call_id" in items[number]} - answered
    return [item for item in shown if item.get("call_id") not in lost]


def _led_to(items: Sequence[Json], number: int) -> Iterator[int]:
    while number > 0 and _is_said(items[number - 1]) and items[number - 1].get("role", "user") == "user":
        number -= 1
        yield number


def _is_said(item: Json) -> bool:
    return item["type"] == "message" or item["type"] in _ANSWERED


def _is_mere_refusal(item: Json) -> bool:
    if item["type"] != "message" or item["role"] != "assistant" or item.get("status") != "incomplete":
        return False
    return [part["type"] for part in item["content"]] == ["refusal"]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for key in _TEXTS:
            yield from _texts(value.get(key))
