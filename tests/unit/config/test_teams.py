"""The share of a user is that of their team."""

from __future__ import annotations

import pytest

from llama_stack_responses.concurrency.share import Share
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import ANONYMOUS, Owner

CONFIG = ResponsesConfig.model_validate({"teams": {"search": {"weight": 2}}})


@pytest.mark.parametrize(
    ("teams", "weight"), [(["search", "other"], 2.0), (["other", "search"], 1.0), (["other"], 1.0), ([], 1.0)]
)
def test_share_has_the_weight_of_the_first_team(teams: list[str], weight: float) -> None:
    user = Owner("ada", {"teams": teams}, "acme")
    assert CONFIG.share_of(user) == Share(("acme", "ada"), weight)


def test_user_without_authentication_may_have_all() -> None:
    assert CONFIG.share_of(ANONYMOUS).may_have_all
    assert not CONFIG.share_of(Owner("ada")).may_have_all


@pytest.mark.parametrize("weight", [0, -1, 101, "many"])
def test_weight_that_would_starve_a_user_is_refused(weight: object) -> None:
    with pytest.raises(ValueError, match=r"teams\.search\.weight"):
        ResponsesConfig.model_validate({"teams": {"search": {"weight": weight}}})
