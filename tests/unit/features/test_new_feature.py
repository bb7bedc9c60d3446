"""A hosted tool of a type that nobody had is one folder: the core and the checks of the tests learn of it there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import llama_stack_responses
from tests.support.stack import REPOSITORY

NEW_FEATURE: Final = REPOSITORY / "tests" / "support" / "new_feature" / "dice"

PROGRAM: Final = """
import asyncio
import pytest
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.dice.feature import open_feature
from tests.support.inference import finish, text
from tests.support.strict import WireError, validate_event, validate_response
from tests.unit.tools.tools_harness import ToolsHarness, calls

ResponsesConfig(unavailable_tools={"dice": "omit"})

async def main():
    rounds = [calls(("dice", {"sides": 2})), [text("Done."), finish()]]
    harness = ToolsHarness({"of_features": open_feature(None).tools}, rounds, tools=[{"type": "dice", "sides": 2}])
    response = await harness.run()  # checks the stream, its types, and its replay
    [call, answer] = response["output"]
    assert (call["type"], call["rolled"] in (1, 2)) == ("dice_call", True), call
    assert [event["type"] for event in harness.events if "dice" in event["type"]] == [
        "response.dice_call.in_progress", "response.dice_call.completed"
    ]
    event = next(event for event in harness.events if event["type"] == "response.dice_call.completed")
    wrong = [
        (validate_event, event | {"x": 1}, "not the keys of this event: x"),
        (validate_response, response | {"output": [call | {"sides": 1}, answer]}, "sides"),
        (validate_response, response | {"tools": [{"type": "dices"}]}, "dices"),
    ]
    for validate, value, why in wrong:
        with pytest.raises(WireError, match=why):
            validate(value)
    print("ok")

asyncio.run(main())
"""


@pytest.mark.extended
def test_tool_of_new_type_runs_and_what_is_wrong_in_its_stream_is_found(tmp_path: Path) -> None:
    package = Path(llama_stack_responses.__path__[0])
    shutil.copytree(package, tmp_path / package.name)
    shutil.copytree(NEW_FEATURE, tmp_path / package.name / "features" / NEW_FEATURE.name)
    paths = map(str, (tmp_path, REPOSITORY, REPOSITORY / "providers" / "openai_chat"))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.stdout == "ok\n", ended.stderr
