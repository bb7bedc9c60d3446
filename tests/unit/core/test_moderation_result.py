"""The result of a moderation check is bounded, whatever the checking server says."""

import math

from llama_stack_responses.core.moderation_results import result


def test_result_has_a_bounded_number_of_short_categories() -> None:
    scores = {f"{number}" + "x" * 1_000: 0.5 for number in range(1_000)}
    created = result("m", scores, True, list(scores))
    assert len(created["category_scores"]) == len(created["categories"]) == 128
    assert max(map(len, created["categories"])) == 128


def test_score_that_json_cannot_carry_is_zero() -> None:
    created = result("m", {"a": math.inf, "b": math.nan, "c": 0.25}, False)
    assert created["category_scores"] == {"a": 0.0, "b": 0.0, "c": 0.25}
