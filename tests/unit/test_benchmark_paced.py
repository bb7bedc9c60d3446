"""The benchmark of streams in step: what its engine sends, what its client measures, and its table."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import Answer, encoding
from benchmarks.paced import PROGRAMS, RELAY, WAYS, job_of, places, table
from benchmarks.paced_load import Crowd, Stream
from benchmarks.protocols import KINDS
from benchmarks.servers import Worker

type Json = dict[str, Any]


class RecordingTransport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data.append(bytes(data))


def writes_of(kind: str, tokens: int, as_responses: bool = False) -> list[bytes]:
    """Return the writes of an answer."""
    transport = RecordingTransport()
    answer = Answer(transport, encoding(f"{kind}-{tokens}", as_responses, "f"), tokens)
    assert [answer.step() for _ in range(tokens)] == [True] * (tokens - 1) + [False]
    return transport.data


@pytest.mark.parametrize("kind", KINDS)
def test_engine_writes_each_token_alone_with_its_time(kind: str) -> None:
    before = time.monotonic_ns()
    _, *tokens, closing = writes_of(kind, 3)
    assert len(tokens) == 3
    for each in tokens:
        size, _, rest = each.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        [choice] = json.loads(rest.removeprefix(b"data: "))["choices"]
        [shown] = list(choice["delta"].values())
        stamp = shown if isinstance(shown, str) else shown[0]["function"]["arguments"]
        assert before <= int(stamp) <= time.monotonic_ns()
    assert closing.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


def job(streams: int, tokens: int) -> Json:
    return {"form": "streamed", "streams": streams, "tokens": tokens, "pid": 0}


def crowd_of(monkeypatch: pytest.MonkeyPatch, streams: int, tokens: int) -> Crowd:
    """Return a crowd whose server needs a microsecond of CPU for each look at its CPU time."""
    looks = iter(range(0, 10**6, 1000))
    monkeypatch.setattr("benchmarks.paced_load.cpu_nanoseconds", lambda _: next(looks))
    return Crowd(job(streams, tokens))


async def test_cost_is_measured_while_all_streams_run(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = crowd_of(monkeypatch, 2, 20)
    now = time.monotonic_ns()
    for before in range(20):
        for _ in range(2):
            crowd.read([now - 5_000_000], before)
    found = crowd.found()
    # From the second token of both until the eighteenth of one: 15 of each, and this one.
    assert found["cpu"] == pytest.approx(1e-6 / 31)
    assert found["reads"] == 1
    assert 0.005 <= found["late"][50] < 1


async def test_cost_of_streams_that_never_all_run_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = crowd_of(monkeypatch, 2, 20)
    for _ in range(2):
        for before in range(20):
            crowd.read([time.monotonic_ns()], before)
    assert crowd.found()["cpu"] is None


async def test_client_finds_tokens_that_are_split_between_reads() -> None:
    crowd = Crowd(job(1, 3))
    stream = Stream(crowd)
    stream.connection_made(RecordingTransport())
    crowd.job["body"] = {}
    stream.ask()
    sent = b"".join(writes_of("text", 3))
    for at in range(0, len(sent), 7):
        stream.data_received(sent[at : at + 7])
    await crowd.ended


async def test_gaps_between_tokens_are_measured_if_streams_begin_in_turn() -> None:
    crowd = Crowd(job(1, 3) | {"every": 1.0, "body": {}})
    stream = Stream(crowd)
    stream.connection_made(RecordingTransport())
    stream.ask()
    head, *tokens, closing = writes_of("text", 3)
    stream.data_received(head + tokens[0])
    await asyncio.sleep(0.01)
    stream.data_received(tokens[1] + tokens[2] + closing)
    first, second = crowd.gaps
    assert first >= 0.01
    assert second == 0.0


async def test_client_reports_missing_tokens() -> None:
    crowd = Crowd(job(1, 4))
    stream = Stream(crowd)
    stream.connection_made(RecordingTransport())
    crowd.job["body"] = {}
    stream.ask()
    stream.data_received(b"".join(writes_of("text", 3)))
    with pytest.raises(ValueError, match="3 tokens of 4"):
        await crowd.ended


def test_table_has_ratio_to_relay_with_same_number_of_streams() -> None:
    def measured(cpu: float | None) -> list[Json]:
        late = {"50": 0.001, "95": 0.002, "99": 0.003} if cpu else None
        return [{"cpu": cpu, "whole": (cpu or 1) * 2, "late": late, "firsts": [0.01]}]

    ways = {RELAY: {"1": measured(10e-6), "64": measured(12e-6)}, "text": {"1": measured(50e-6), "64": measured(None)}}
    lines = table({"step_ms": 20, "tokens": 200, "ways": ways}).splitlines()
    assert "| text | 1 | 50 µs | 5.0 | 100 µs | 5.0 | 1.0 ms | 2.0 ms | 3.0 ms | 10.0 ms |" in lines
    assert any(line.startswith("| text | 64 |  |  |") for line in lines)


@pytest.mark.extended
@pytest.mark.parametrize("server", PROGRAMS)
def test_programs_that_pass_bytes_on_deliver_all_tokens(server: str, tmp_path: Path) -> None:
    [way] = [each for each in WAYS if each.server == server]
    with places(tmp_path, [way], 1) as found, Worker("benchmarks.paced_load") as load:
        measured = load.ask(job_of(way, found[server], 2, 20))
    assert len(measured["firsts"]) == 2
    assert measured["cpu"] > 0
