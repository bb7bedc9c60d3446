"""The benchmark of stages sorts stacks by the code that runs."""

from importlib.util import find_spec
from pathlib import Path

from benchmarks.stages import ELSE, STAGES, shares, stage_of

LOOP = ("/py/asyncio/runners.py", 118)
TURN = ("/x/llama_stack_responses/generation/loop.py", 216)


def test_stack_belongs_to_innermost_known_frame() -> None:
    assert stage_of([LOOP]) == ELSE
    assert stage_of([LOOP, TURN]) == "rounds"
    assert stage_of([LOOP, TURN, ("/x/llama_stack_responses/core/ids.py", 1)]) == "rounds"
    assert (
        stage_of([LOOP, TURN, ("/x/llama_stack_responses/chat/chunks.py", 1)])
        == "messages to the model, chunks to deltas"
    )
    assert stage_of([LOOP, TURN, ("/y/llama_stack/core/routers/inference.py", 1)]) == "the host's router and provider"
    assert (
        stage_of([LOOP, TURN, ("/y/openai/_models.py", 1), ("/py/typing.py", 2)])
        == "the model server's bytes, to chunks"
    )
    assert stage_of([LOOP, ("/x/llama_stack_responses/requests/request.py", 1)]) == "reading and resolving the request"


def test_each_stage_exists_in_code() -> None:
    folder, host = Path(__file__).parents[2], find_spec("llama_stack")
    assert host
    assert host.origin
    places = [folder / "llama_stack_responses", folder / "providers", Path(host.origin).parent / "core"]
    files = [str(path) for place in places for path in place.glob("**/*.py")]
    known = {stage_of([(path, 1)]) for path in files}
    assert known | {"log lines", "spans and metrics"} >= STAGES.keys()


def test_waiting_threads_are_not_counted(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("job = queue.get()\njob.run()\ntime.sleep(1)\n")
    lines = [
        f"take ({worker}:1) 70",
        f"sleep ({worker}:3) 70",
        f"take ({worker}:2) 30",
        f"run ({LOOP[0]}:118);feed ({TURN[0]}:216) 10",
    ]
    found = shares(lines)
    assert found[ELSE] == 0.75
    assert found["rounds"] == 0.25
