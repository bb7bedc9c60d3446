"""Health by inference provider: what is logged, measured and required."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.provider_check import ProviderCheck, Required
from tests.support.inference import FakeInference


class Clusters(FakeInference):
    """Inference with several providers."""

    def __init__(self, **states: bool | None) -> None:
        super().__init__()
        self.states: dict[str, bool | None] = states

    async def health(self, _: float, /) -> dict[str, bool | None]:
        return dict(self.states)


def check_of(required: Required, **states: bool | None) -> ProviderCheck:
    return ProviderCheck(Clusters(**states), required, DEFAULT)


@pytest.mark.parametrize(
    ("required", "states", "ready"),
    [
        ("any", {"a": True, "b": False, "c": False}, True),
        ("any", {"a": False, "b": False}, False),
        ("any", {"a": None}, None),
        ("any", {}, None),
        ("all", {"a": True, "b": False, "c": True}, False),
        ("all", {"a": True, "b": True, "c": None}, True),
        (["a", "b"], {"a": True, "b": True, "c": False}, True),
        (["a", "b"], {"a": True, "b": False, "c": True}, False),
        (["a"], {"a": None}, True),
        (["absent"], {"a": True}, False),
    ],
)
async def test_readiness_requires_any_all_or_some_providers(
    required: Any, states: dict[str, bool | None], ready: bool | None
) -> None:
    assert await check_of(required, **states).is_ready() is ready


async def test_one_ill_provider_of_three_is_logged_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clusters = Clusters(a=True, b=True, c=None)
    check = ProviderCheck(clusters, "any", DEFAULT)
    await check.check()
    assert caplog.records == []
    clusters.states["b"] = False
    await check.check()
    await check.check()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("does not answer: b")
    assert (check.up(), check.unavailable) == ({"a": 1, "b": 0}, 1)
    clusters.states["b"] = True
    await check.check()
    assert caplog.messages[1:] == ["the model server of the inference provider answers again: b"]
