"""When a moderation filter releases output, and how it blocks it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation_results import NO_OUTPUT, NOT_YET, result
from llama_stack_responses.features.moderation.filter import ModerationFilter
from llama_stack_responses.features.moderation.policy import Mode, Policy
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.stream.usage import UNKNOWN, Usage
from tests.support.moderation import AWAY, FakeModerator, checks
from tests.support.thread_calls import calls_of_this_thread

Json = dict[str, Any]

STOP: Final = Finish("stop", Usage(3, 4))
INPUT: Final = result("m", {}, flagged=False)
CUT: Final = Refusal("This answer was cut off: its next part was flagged by the moderation (badness).")


def message(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


class Harness:
    """A moderation filter that holds ten characters."""

    def __init__(
        self,
        mode: Mode = "block",
        *,
        failing: dict[int, Exception] | None = None,
        output: list[Json] | None = None,
        moderation: Json | None = None,
    ) -> None:
        self.moderator = FakeModerator(failing)
        policy = Policy("moderation", ["m"], "block", mode)
        begun = moderation or {"input": INPUT, "output": NOT_YET}
        self.guard = ModerationFilter(checks(self.moderator, held=10), policy, begun, output or [])

    async def shown(self, *deltas: Delta) -> list[Delta]:
        """Return the deltas that come out for `deltas`."""
        return [shown for delta in deltas for shown in [each async for each in self.guard.feed(delta)]]


@pytest.mark.parametrize(("length", "in_loop"), [(100, True), (100_000, False)])
@pytest.mark.parametrize("mode", ["block", "score"])
async def test_large_output_is_joined_in_a_thread(mode: Mode, length: int, in_loop: bool) -> None:
    output = [message("a" * length), message("b")]
    harness = Harness(mode, output=output)
    with calls_of_this_thread() as called:
        await harness.guard.moderation(output)
    assert ("_joined_texts.<locals>.joined" in called) == in_loop
    assert harness.moderator.checked[-1].endswith("a\n\nb")


async def test_text_is_held_until_checked() -> None:
    harness = Harness()
    assert await harness.shown(Text("123"), Text("456")) == []
    assert await harness.shown(Text("7890")) == [Text("123"), Text("456"), Text("7890")]
    assert await harness.shown(Text("1")) == []
    assert await harness.shown(STOP) == [Text("1"), STOP]
    assert harness.moderator.checked == ["1234567890", "12345678901"]


async def test_piece_is_checked_with_bounded_preceding_text() -> None:
    harness = Harness()
    await harness.shown(Text("a" * 2000), Text("b" * 10), STOP, Text("c"), STOP)
    assert harness.moderator.checked == ["a" * 2000, "a" * 1000 + "b" * 10, "c"]


async def test_all_kinds_of_output_are_checked_in_order() -> None:
    harness = Harness()
    deltas: list[Delta] = [
        Reasoning("hm"),
        Reasoning("", signature="s"),
        Text("a"),
        Annotation({"type": "file_citation"}, 0),
        Refusal("b"),
        ToolCall(0, "f", "c", "{}"),
        STOP,
    ]
    assert await harness.shown(*deltas) == deltas
    assert harness.moderator.checked == ["hm\na\nb\n{}"]


async def test_deltas_without_text_are_not_held() -> None:
    harness = Harness()
    signed = Reasoning("", signature="s")
    assert await harness.shown(signed) == [signed]
    assert await harness.shown(Text(" "), STOP) == [Text(" "), STOP]
    assert harness.moderator.checked == []


async def test_call_is_held_until_its_arguments_are_checked() -> None:
    harness = Harness()
    assert await harness.shown(ToolCall(0, "f", "c")) == []
    assert await harness.shown(Annotation({}), ToolCall(0, arguments="bad"), STOP) == [
        CUT,
        Finish("content_filter", Usage(3, 4)),
    ]


async def test_flagged_text_ends_response_with_refusal() -> None:
    harness = Harness()
    assert await harness.shown(Text("All is well."), Text("A bad "), Text("thing.")) == [
        Text("All is well."),
        CUT,
        Finish("content_filter", UNKNOWN),
    ]
    assert await harness.shown(Text("More than ten characters."), STOP) == []
    moderation = await harness.guard.moderation([])
    assert moderation["output"]["flagged"]
    assert moderation["output"]["category_scores"] == {"badness": 0.9}


async def test_flagged_text_at_end_becomes_refusal() -> None:
    assert await Harness().shown(Text("bad"), STOP) == [CUT, Finish("content_filter", Usage(3, 4))]


async def test_flagged_text_across_two_pieces_is_found() -> None:
    harness = Harness()
    assert await harness.shown(Text("12345678 b"), Text("ad, all in all.")) == [
        Text("12345678 b"),
        CUT,
        Finish("content_filter", UNKNOWN),
    ]


async def test_unchecked_text_is_never_released() -> None:
    harness = Harness(failing={1: AWAY})
    assert await harness.shown(Text("1234567890")) == [Text("1234567890")]
    with pytest.raises(ApiError, match="away"):
        await harness.shown(Text("1234567890"))
    assert [each async for each in harness.guard.feed(STOP)] == [STOP]


@pytest.mark.parametrize(("text", "flagged"), [("good", False), ("bad", True)])
async def test_scored_output_is_checked_at_end(text: str, flagged: bool) -> None:
    harness = Harness("score")
    assert not harness.guard.blocks
    moderation = await harness.guard.moderation([message("Well."), message(text)])
    assert (moderation["input"], moderation["output"]["flagged"]) == (INPUT, flagged)
    assert harness.moderator.checked == [f"Well.\n\n{text}"]


async def test_failed_scoring_is_reported_in_moderation() -> None:
    moderation = await Harness("score", failing={0: AWAY}).guard.moderation([message("a")])
    assert moderation["output"]["code"] == "moderation_unavailable"


async def test_output_of_earlier_worker_is_scored_too() -> None:
    harness = Harness(output=[message("Said before.")])
    await harness.shown(Text("New."), STOP)
    assert (await harness.guard.moderation([]))["output"]["flagged"] is False
    assert harness.moderator.checked == ["New.", "Said before."]


async def test_empty_answer_is_not_checked() -> None:
    harness = Harness()
    await harness.shown(STOP)
    assert (await harness.guard.moderation([]))["output"] == result("m", {}, flagged=False)
    assert harness.moderator.checked == []


async def test_flagged_input_gives_input_refusal() -> None:
    refused = {"input": result("m", {}, True, ["hate"]), "output": NO_OUTPUT}
    harness = Harness(moderation=refused)
    assert harness.guard.input_refusal == ("This request was blocked: its input was flagged by the moderation (hate).")
    assert await harness.guard.moderation([message("No.")]) == refused
    assert Harness().guard.input_refusal is None
