"""Settings of usage that cannot be meant are refused, in words that say what to change."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.features.usage.settings import Usage

type Json = dict[str, Any]


@pytest.mark.parametrize(
    "limits",
    [
        [{"name": "trial", "requests_per_minute": 1}, {"name": "trial", "by": "team", "requests_per_minute": 2}],
        [{"requests_per_minute": 1, "tokens_per_day": 5}, {"requests_per_minute": 2, "enforced": False}],
    ],
    ids=["one name", "no names"],
)
def test_limits_that_would_count_together_are_refused(limits: list[Json]) -> None:
    with pytest.raises(ValidationError, match="have 'requests_per_minute': give one of them another 'name'"):
        Usage.model_validate({"limits": limits})


def test_limits_of_different_names_or_amounts_are_allowed() -> None:
    limits: list[Json] = [
        {"requests_per_minute": 1},
        {"tokens_per_day": 5},
        {"requests_per_minute": 2, "name": "early", "enforced": False},
        {"by": "team", "requests_per_minute": 1},
        {"models": "large*", "requests_per_minute": 1},
    ]
    assert len(Usage.model_validate({"limits": limits}).limits) == 5


@pytest.mark.parametrize("fields", [{"requests_per_minute": 1}, {"tokens_per_minute": 1}, {"running": 1}])
def test_limit_that_cannot_end_responses_is_refused(fields: Json) -> None:
    with pytest.raises(ValidationError, match="'cut_running' needs a limit of tokens or costs of a day or a month"):
        Usage.model_validate({"limits": [{**fields, "cut_running": True}]})


@pytest.mark.parametrize("fields", [{"by": "model"}, {"models": "large*"}])
def test_limit_of_what_is_stored_of_some_models_is_refused(fields: Json) -> None:
    with pytest.raises(ValidationError, match="'stored_bytes' is counted for all models"):
        Usage.model_validate({"limits": [{"stored_bytes": 1, **fields}]})
