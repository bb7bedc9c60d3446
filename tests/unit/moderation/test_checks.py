"""Texts are checked whole, in pieces that a small model can read, and a check that hangs ends."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation import NO_OUTPUT, NOT_YET, Mode, Policy
from llama_stack_responses.moderation.checks import PIECE, Checks
from llama_stack_responses.moderation.moderator import NoModerator
from tests.support.moderation import AWAY, FakeModerator, checks

Json = dict[str, Any]

BLOCKED: Final = Policy("guardrails", ["a", "b"], "block", "block")


def asked(mode: Mode) -> Policy:
    return Policy("moderation", ["m"], mode, mode)


async def test_all_of_them_check() -> None:
    moderator = FakeModerator()
    found = await checks(moderator).check(BLOCKED, "good", "input")
    assert (found["flagged"], found["model"]) == (False, "a, b")
    assert moderator.asked == [("guardrails", "a", "input"), ("guardrails", "b", "input")]


@pytest.mark.parametrize("place", [0, PIECE - 2, PIECE, 3 * PIECE, 10 * PIECE - 3])
async def test_no_place_of_a_long_text_is_left_out(place: int) -> None:
    moderator = FakeModerator()
    text = "." * place + "bad" + "." * (10 * PIECE - place - 3)
    assert (await checks(moderator).check(asked("score"), text, "output"))["flagged"]
    assert max(map(len, moderator.checked)) == PIECE


async def test_nothing_is_checked_where_nothing_is_said() -> None:
    moderator = FakeModerator()
    found = await checks(moderator).check(BLOCKED, " \n", "input")
    assert (found["flagged"], found["model"], moderator.checked) == (False, "a, b", [])


@pytest.mark.parametrize(
    ("mode", "text", "output"),
    [("block", "bad", NO_OUTPUT), ("block", "good", NOT_YET), ("score", "bad", NOT_YET)],
)
async def test_an_input(mode: Mode, text: str, output: Json) -> None:
    found = await checks().of_input(asked(mode), ["hi", text])
    assert (found["input"]["flagged"], found["output"]) == (text == "bad", output)


async def test_a_failure_is_told_where_nothing_is_blocked(caplog: pytest.LogCaptureFixture) -> None:
    found = await checks(FakeModerator({0: AWAY})).of_input(asked("score"), ["hi"])
    assert found["input"] == {"type": "error", "code": "moderation_unavailable", "message": "The moderator is away."}
    assert found["output"] == NOT_YET
    assert "The moderator is away" in caplog.text


@pytest.mark.parametrize(("mode", "error"), [("block", AWAY), ("score", ApiError(400, "Who?", param="moderation"))])
async def test_what_is_not_checked_goes_no_further(mode: Mode, error: ApiError) -> None:
    with pytest.raises(ApiError) as raised:
        await checks(FakeModerator({0: error})).of_input(asked(mode), ["hi"])
    assert raised.value is error


class Hanging(FakeModerator):
    async def check(self, *_: Any) -> Json:
        return await asyncio.Event().wait()  # type: ignore[return-value]


async def test_a_check_that_hangs() -> None:
    with pytest.raises(ApiError, match=r"did not answer within 0\.01 seconds") as raised:
        await Checks(Hanging(), seconds=0.01, held=1).check(BLOCKED, "hi", "input")
    assert raised.value.status == 504


@pytest.mark.parametrize("kind", ["moderation", "guardrails"])
async def test_nobody_is_there(kind: Any) -> None:
    with pytest.raises(ApiError, match="this stack has nobody") as raised:
        await Checks(NoModerator(), 1, 1).of_input(Policy(kind, ["m"], "score", "score"), ["hi"])
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, kind, "unsupported_parameter")
    await NoModerator().close()
