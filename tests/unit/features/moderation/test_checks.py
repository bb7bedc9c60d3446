"""Texts are checked completely, in pieces small enough for a small model, and a hanging check times out."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation_results import NO_OUTPUT, NOT_YET
from llama_stack_responses.features.moderation.checks import PIECE_CHARACTERS, Checks
from llama_stack_responses.features.moderation.policy import Mode, Policy
from tests.support.moderation import AWAY, FakeModerator, checks

Json = dict[str, Any]

BLOCKED: Final = Policy("guardrails", ["a", "b"], "block", "block")


def policy(mode: Mode) -> Policy:
    return Policy("moderation", ["m"], mode, mode)


async def test_all_configured_checks_run() -> None:
    moderator = FakeModerator()
    found = await checks(moderator).check(BLOCKED, "good", "input")
    assert (found["flagged"], found["model"]) == (False, "a, b")
    assert moderator.checks == [("guardrails", "a", "input"), ("guardrails", "b", "input")]


@pytest.mark.parametrize(
    "place", [0, PIECE_CHARACTERS - 2, PIECE_CHARACTERS, 3 * PIECE_CHARACTERS, 10 * PIECE_CHARACTERS - 3]
)
async def test_long_text_is_checked_without_gaps(place: int) -> None:
    moderator = FakeModerator()
    text = "." * place + "bad" + "." * (10 * PIECE_CHARACTERS - place - 3)
    assert (await checks(moderator).check(policy("score"), text, "output"))["flagged"]
    assert max(map(len, moderator.checked)) == PIECE_CHARACTERS


async def test_blank_text_is_not_checked() -> None:
    moderator = FakeModerator()
    found = await checks(moderator).check(BLOCKED, " \n", "input")
    assert (found["flagged"], found["model"], moderator.checked) == (False, "a, b", [])


@pytest.mark.parametrize(
    ("mode", "text", "output"),
    [("block", "bad", NO_OUTPUT), ("block", "good", NOT_YET), ("score", "bad", NOT_YET)],
)
async def test_input_check_sets_input_and_output_results(mode: Mode, text: str, output: Json) -> None:
    found = await checks().check_input(policy(mode), f"hi\n\n{text}")
    assert (found["input"]["flagged"], found["output"]) == (text == "bad", output)


async def test_failed_scoring_is_reported_and_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    found = await checks(FakeModerator({0: AWAY})).check_input(policy("score"), "hi")
    assert found["input"] == {"type": "error", "code": "moderation_unavailable", "message": "The moderator is away."}
    assert found["output"] == NOT_YET
    assert "The moderator is away" in caplog.text


@pytest.mark.parametrize(("mode", "error"), [("block", AWAY), ("score", ApiError(400, "Who?", param="moderation"))])
async def test_failed_blocking_check_is_raised(mode: Mode, error: ApiError) -> None:
    with pytest.raises(ApiError) as raised:
        await checks(FakeModerator({0: error})).check_input(policy(mode), "hi")
    assert raised.value is error


class HangingModerator(FakeModerator):
    async def check(self, *_: Any) -> Json:
        return await asyncio.Event().wait()  # type: ignore[return-value]


async def test_hanging_check_times_out() -> None:
    with pytest.raises(ApiError, match=r"did not answer within 0\.01 seconds") as raised:
        await Checks(HangingModerator(), seconds=0.01, held_characters=1).check(BLOCKED, "hi", "input")
    assert raised.value.status == 504
