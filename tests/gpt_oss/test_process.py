"""The engine process is shared, watched and restarted, and no block is lost when a client dies."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_stack_gpt_oss.engine.engine import Metrics, Request
from llama_stack_gpt_oss.engine.errors import EngineError, QueueFullError, RequestError
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.process.client import EngineClient, EngineDiedError
from llama_stack_gpt_oss.process.frames import line, pack_request, unpack_request
from llama_stack_gpt_oss.process.grammars import (
    GRAMMAR_CHARACTERS,
    MAX_GRAMMARS,
    MAX_SECONDS,
    GrammarCompiler,
    Prepared,
)
from llama_stack_gpt_oss.process.hub import Hub, Peer
from llama_stack_gpt_oss.process.server import POLL_SECONDS, EngineServer
from llama_stack_gpt_oss.process.settings import ADDRESS_BYTES, EngineSettings, address
from llama_stack_gpt_oss.process.step_watch import StepWatch
from tests.support.proc import has_ended

from .support.engines import WIDE, CountingRunner, engine_over
from .support.processes import kill, settings, wait_for

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
LONG = SamplingParams(max_tokens=1500, temperature=0.0)
SECONDS = 180


@pytest.fixture(scope="module", autouse=True)
def engine_threads() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> EngineSettings:
    """Settings with a folder whose path is too long for a socket address."""
    folder = tmp_path_factory.mktemp("state") / ("long" * 30)
    assert len(str(folder)) > ADDRESS_BYTES
    return settings(folder, checkpoint)


@contextlib.asynccontextmanager
async def client_of(created: EngineSettings, stall_seconds: float = SECONDS) -> AsyncIterator[EngineClient]:
    client = EngineClient(created, stall_seconds, patience_seconds=SECONDS)
    try:
        await asyncio.to_thread(client.start)
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(served: EngineSettings) -> AsyncIterator[EngineClient]:
    async with client_of(served) as created:
        yield created


def request(name: str, params: SamplingParams = GREEDY, tokens: int = 30) -> Request:
    return Request((name,), list(range(1, tokens + 1)), params)


async def tokens(client: EngineClient, wanted: Request) -> list[int]:
    return [update.sampled.token async for update in client.generate(wanted)]


async def until(client: EngineClient, true: Callable[[Metrics], bool]) -> Metrics:
    async with asyncio.timeout(SECONDS):
        while not true(now := await client.metrics()):
            pass  # the engine answers between two steps
    return now


def idle(now: Metrics) -> bool:
    return now.running == now.waiting == now.pages_used == 0


async def test_two_clients_share_one_engine(client: EngineClient, served: EngineSettings) -> None:
    async with client_of(served) as other:
        one, two = await asyncio.gather(tokens(client, request("a")), tokens(other, request("b")))
        assert one == two
        assert len(one) == 20
        assert await other.ready() == await client.ready()


async def test_closing_iterator_cancels_request(client: EngineClient) -> None:
    stream = client.generate(request("a", LONG))
    await anext(stream)
    assert (await client.metrics()).running == 1
    await stream.aclose()
    await until(client, idle)


async def test_dead_client_leaves_no_requests_or_blocks(client: EngineClient, served: EngineSettings) -> None:
    with address(served.socket) as name, socket.socket(socket.AF_UNIX) as raw:
        raw.connect(name)
        for number in range(6):
            raw.sendall(line({"generate": pack_request(request(f"r{number}", LONG))}))
        await until(client, lambda now: now.running == 6)
    await until(client, idle)


async def test_client_cannot_cancel_request_of_other_client(client: EngineClient, served: EngineSettings) -> None:
    async with client_of(served) as other:
        stream = client.generate(request("mine", replace(GREEDY, max_tokens=40)))
        await anext(stream)
        await other.metrics()
        other.cancel("mine")
        assert len([update async for update in stream]) == 39


async def test_refused_requests_have_reasons(client: EngineClient) -> None:
    with pytest.raises(RequestError, match=r"The prompt has 3,000 tokens, and the context of 2,048 tokens"):
        await tokens(client, request("long", tokens=3000))
    streams = [client.generate(request(f"r{number}", LONG)) for number in range(12)]
    pending = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await until(client, lambda now: now.running + now.waiting == 12)
    with pytest.raises(QueueFullError, match="4 requests are queued already"):
        await tokens(client, request("over"))
    for task, stream in zip(pending, streams, strict=True):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await stream.aclose()
    await until(client, idle)


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(LONG, top_k=7, min_p=0.5, stop_ids=frozenset({3, 5}), seed=9),
        replace(LONG, frequency_penalty=0.5, logit_bias=((3, 1.5), (5, -1.0)), unpenalised=frozenset({9, 7})),
    ],
)
def test_request_keeps_its_parameters_in_a_frame(params: SamplingParams) -> None:
    sent = Request(("one", "two"), [1, 2], params, "start: TEXT")
    assert unpack_request(json.loads(line(pack_request(sent)))) == sent


def test_parameters_with_defaults_are_not_sent() -> None:
    """An engine of an earlier version knows neither top_k nor min_p."""
    assert pack_request(request("one"))["params"] == {"max_tokens": 20, "temperature": 0.0, "stop_ids": []}


def test_socket_is_that_of_an_engine_of_the_first_release() -> None:
    settings = EngineSettings(folder="/run/engine", checkpoint="/models/gpt-oss-20b")
    assert settings.socket == Path("/run/engine/engine-44ed9f9ef99d.sock")
    assert replace(settings, drafts=3).socket != settings.socket
    assert replace(settings, dependent_launch=False).socket != settings.socket


class OneClient(Hub):
    """Delivers frames of one client, then closes."""

    class ClosedError(Exception):
        """All frames were delivered, and the engine is idle."""

    def __init__(self, frames: list[dict[str, Any]], sender: socket.socket) -> None:
        self.peers = {Peer(sender)}
        self.sent: list[dict[str, Any]] = []
        self._frames = frames

    def poll(self, seconds: float | None) -> Iterator[tuple[Peer, dict[str, Any] | None]]:
        if seconds and not self._frames:
            raise self.ClosedError
        frames, self._frames = self._frames, []
        return ((peer, frame) for frame in frames for peer in self.peers)

    def send(self, peer: Peer, frame: dict[str, Any]) -> None:
        self.sent.append(frame)


def test_unknown_parameter_is_refused_and_engine_keeps_running() -> None:
    """A client of a later version sends a parameter that this engine does not know."""
    packed = [pack_request(request(name)) for name in ("newer", "other")]
    packed[0]["params"]["future"] = 1
    engine, _ = engine_over(CountingRunner(WIDE))
    with socket.socket(socket.AF_UNIX) as sender:
        hub = OneClient([{"generate": raw} for raw in packed], sender)
        with pytest.raises(OneClient.ClosedError):
            EngineServer(hub, engine, GrammarCompiler(lambda: None, lambda _: None, lambda: None, 64)).serve()
    refused, *updates = hub.sent
    assert refused["refused"]["ids"] == ("newer",)
    assert "does not know future" in refused["refused"]["message"]
    assert len([update for frame in updates for update in frame["updates"]]) == 20


class AnyToken:
    """A mask that allows every token."""

    failed = False

    def allowed(self) -> bytes:
        return b"\xff" * 128

    def accept(self, token: int) -> None:
        """Do nothing."""

    def rollback(self, count: int) -> None:
        """Do nothing."""


class ManualCompiler:
    """Compiles grammars when they are released, or fails with their text."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.compiled: list[str] = []

    def __call__(self, grammar: str) -> None:
        assert self.released.wait(SECONDS)
        self.compiled.append(grammar)
        if grammar.startswith("bad"):
            raise RequestError(grammar)


class ManyFrames(OneClient):
    """Delivers the next frames when the engine has sent what `follows` asks for."""

    def __init__(
        self, frames: list[dict[str, Any]], sender: socket.socket, follows: Callable[["ManyFrames"], None]
    ) -> None:
        super().__init__(frames, sender)
        self._follows = follows
        self.polls = 0

    def then(self, frame: dict[str, Any]) -> None:
        self._frames.append(frame)

    def finished(self) -> set[str]:
        return {raw[0] for frame in self.sent for raw in frame.get("updates", ()) if raw[4] is not None}

    def refused(self) -> list[str]:
        return [frame["refused"]["message"] for frame in self.sent if "refused" in frame]

    def poll(self, seconds: float | None) -> Iterator[tuple[Peer, dict[str, Any] | None]]:
        self.polls += 1
        self._follows(self)
        if seconds == POLL_SECONDS and not self._frames:
            raise self.ClosedError
        time.sleep(min(seconds or 0, 0.01))
        frames, self._frames = self._frames, []
        return ((peer, frame) for frame in frames for peer in self.peers)


def bound(name: str, grammar: str = "start: TEXT", choices: int = 1) -> dict[str, Any]:
    ids = (name,) if choices == 1 else tuple(f"{name}{number}" for number in range(choices))
    return {"generate": pack_request(replace(request(name), ids=ids, grammar=grammar))}


def serve(
    frames: list[dict[str, Any]],
    compilation: ManualCompiler,
    follows: Callable[[ManyFrames], None],
    max_seconds: float = MAX_SECONDS,
    max_requests: int = 64,
) -> tuple[ManyFrames, Metrics]:
    engine, _ = engine_over(CountingRunner(WIDE), open_mask=lambda _: AnyToken())
    with socket.socket(socket.AF_UNIX) as sender:
        hub = ManyFrames(frames, sender, follows)
        with pytest.raises(OneClient.ClosedError):
            EngineServer(
                hub, engine, GrammarCompiler(lambda: None, compilation, lambda: None, max_requests, max_seconds)
            ).serve()
    return hub, engine.metrics()


def test_grammar_is_compiled_while_other_requests_run() -> None:
    compilation = ManualCompiler()

    def follows(hub: ManyFrames) -> None:
        if hub.finished() == {"plain"}:
            compilation.released.set()

    hub, _ = serve([bound("bound"), {"generate": pack_request(request("plain"))}], compilation, follows)
    names = [raw[0] for frame in hub.sent for raw in frame["updates"]]
    assert names == ["plain"] * 20 + ["bound"] * 20


def test_request_whose_grammar_cannot_be_compiled_is_refused() -> None:
    compilation = ManualCompiler()
    compilation.released.set()
    hub, _ = serve([bound("a", "bad rules"), bound("b")], compilation, lambda _: None)
    assert hub.refused() == ["bad rules"]
    assert hub.finished() == {"b"}


def test_request_that_is_cancelled_before_its_grammar_is_compiled_never_runs() -> None:
    """Of a request with several choices, the others run. A grammar without a waiting request is not compiled."""
    compilation = ManualCompiler()

    def follows(hub: ManyFrames) -> None:
        if hub.polls == 2:
            hub.then({"cancel": ["second", "third1"]})
        if hub.polls == 4:
            compilation.released.set()

    frames = [bound("first"), bound("second", "start: /x/"), bound("third", choices=3)]
    hub, metrics = serve(frames, compilation, follows)
    assert hub.finished() == {"first", "third0", "third2"}
    assert compilation.compiled == ["start: TEXT", "start: TEXT"]
    assert metrics.running == metrics.pages_used == 0


def test_compiled_grammar_ends_wait_for_frames(tmp_path: Path) -> None:
    """Nothing polls for it: the compiler's thread wakes the engine's."""
    compilation = ManualCompiler()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as sender:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        hub = Hub(listener)
        grammars = GrammarCompiler(lambda: None, compilation, hub.wake, 64)
        assert grammars.seconds_left() is None
        grammars.submit(Peer(sender), replace(request("one"), grammar="start: TEXT"))
        assert 0 < (grammars.seconds_left() or 0) <= MAX_SECONDS
        threading.Timer(0.1, compilation.released.set).start()
        started = time.monotonic()
        assert list(hub.poll(SECONDS)) == []
        assert time.monotonic() - started < SECONDS
        assert [each.request.ids for each in grammars.prepared()] == [("one",)]
        assert list(hub.poll(0)) == []


def test_grammars_are_bounded_in_length_number_and_time() -> None:
    compilation = ManualCompiler()
    different = [bound(f"{number}", f"start: /{number}/") for number in range(MAX_GRAMMARS + 1)]
    frames = [bound("long", "x" * (GRAMMAR_CHARACTERS + 1)), *different]

    def follows(hub: ManyFrames) -> None:
        if len(hub.refused()) == MAX_GRAMMARS + 2:
            compilation.released.set()

    hub, metrics = serve(frames, compilation, follows, max_seconds=0.2)
    assert "too long" in hub.refused()[0]
    assert f"{MAX_GRAMMARS} other grammars" in hub.refused()[1]
    assert Counter(hub.refused()[2:]) == {"The grammar of the request was not compiled within 0 seconds": MAX_GRAMMARS}
    assert metrics.steps == 0


def test_more_requests_with_one_grammar_may_wait_than_with_different_ones() -> None:
    compilation = ManualCompiler()
    alike = [bound(f"{number}") for number in range(MAX_GRAMMARS + 9)]

    def follows(hub: ManyFrames) -> None:
        if len(hub.refused()) == 1:
            compilation.released.set()

    hub, _ = serve(alike, compilation, follows, max_requests=MAX_GRAMMARS + 8)
    assert hub.refused() == [f"{MAX_GRAMMARS + 8} requests wait already for their grammars to be compiled"]
    assert hub.finished() == {f"{number}" for number in range(MAX_GRAMMARS + 8)}


def test_waiting_requests_hold_an_equal_grammar_once() -> None:
    compilation = ManualCompiler()
    grammars = GrammarCompiler(lambda: None, compilation, lambda: None, 64)
    with socket.socket(socket.AF_UNIX) as sender:
        for name in ("one", "two"):
            grammars.submit(Peer(sender), replace(request(name), grammar="".join(["start: ", "TEXT"])))
        compilation.released.set()
        prepared: list[Prepared] = []
        while len(prepared) < 2:
            prepared += grammars.prepared()
    assert prepared[0].request.grammar is prepared[1].request.grammar


async def test_killed_engine_fails_running_requests_and_is_restarted(served: EngineSettings) -> None:
    async with client_of(served) as client:
        expected = await tokens(client, request("before"))
        pid = (await client.ready()).pid
        running = client.generate(request("during", LONG))
        await anext(running)
        kill(pid)
        with pytest.raises(EngineDiedError, match="ended in the middle of its answer"):
            async for _ in running:
                pass
        assert await tokens(client, request("after")) == expected


async def test_hanging_engine_is_killed(served: EngineSettings) -> None:
    async with client_of(served, stall_seconds=2) as hasty:
        pid = (await hasty.ready()).pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDiedError):
            await tokens(hasty, request("during"))
        async with client_of(served) as patient:
            assert len(await tokens(patient, request("after"))) == 20
            assert await patient.ready() == await hasty.ready()
        assert has_ended(pid)


SLOWED = """
import sys, time
from llama_stack_gpt_oss.engine.engine import Engine
from llama_stack_gpt_oss.process.server import main
from llama_stack_gpt_oss.process.settings import EngineSettings

compute = Engine.step

def step(engine):
    time.sleep({seconds})
    return {result}

Engine.step = step
sys.exit(main(EngineSettings.from_json(sys.argv[1])))
"""


@contextlib.contextmanager
def slowed_engine(of: EngineSettings, seconds: float, result: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine whose steps sleep for some seconds before they evaluate `result`."""
    code = SLOWED.format(seconds=seconds, result=result)
    with subprocess.Popen([sys.executable, "-c", code, of.to_json()]) as process:
        try:
            wait_for(of.socket.exists)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [(3600, "has not answered for 10 seconds"), (0.01, "has computed nothing for its requests for 10 seconds")],
)
async def test_engine_whose_step_is_stuck_is_killed(
    tmp_path: Path, checkpoint: Path, seconds: float, sentence: str
) -> None:
    """It hangs in a step, or goes on answering questions without a step."""
    created = settings(tmp_path, checkpoint)
    with slowed_engine(created, seconds, "[]") as stuck:
        async with client_of(created, stall_seconds=10) as hasty:
            assert (await hasty.ready()).pid == stuck.pid
            async with asyncio.timeout(SECONDS):
                with pytest.raises(EngineDiedError, match=f"{sentence}, and was ended"):
                    await tokens(hasty, request("during"))
            assert stuck.wait() == -signal.SIGKILL
            # A client that waits longer: on a busy machine, a step of the next engine may take ten seconds.
            async with client_of(created) as patient:
                assert len(await tokens(patient, request("after"))) == 20


def test_step_watch_counts_time_with_work_and_without_steps() -> None:
    now = 0.0
    watch = StepWatch(lambda: now)
    idle_engine = engine_over(CountingRunner(WIDE))[0].metrics()
    found = []
    for running, waiting, steps in ((0, 0, 0), (1, 0, 0), (1, 0, 0), (0, 1, 0), (1, 0, 1), (1, 0, 1), (0, 0, 1)):
        watch.observe(replace(idle_engine, running=running, waiting=waiting, steps=steps))
        found.append(watch.seconds)
        now += 10
    assert found == [0, 0, 10, 20, 0, 10, 0]


async def test_engine_that_is_busy_with_answers_of_others_is_not_killed(tmp_path: Path, checkpoint: Path) -> None:
    created = settings(tmp_path, checkpoint, sequences=1)
    with slowed_engine(created, 0.05, "compute(engine)"):
        async with client_of(created) as patient, client_of(created, stall_seconds=10) as hasty:
            running = patient.generate(replace(request("one", LONG), ids=("one", "two")))
            await anext(running)
            waiting, begun = asyncio.create_task(tokens(hasty, request("after"))), time.monotonic()
            async for _ in running:
                if time.monotonic() - begun > 12:
                    break
            await running.aclose()
            assert len(await waiting) == 20


async def test_unused_engine_exits(tmp_path: Path, checkpoint: Path) -> None:
    created = settings(tmp_path, checkpoint)
    async with client_of(created) as client:
        pid = (await client.ready()).pid
    await asyncio.to_thread(wait_for, lambda: has_ended(pid))
    assert not created.socket.exists()


def test_engine_that_no_client_waits_for_stops_loading(tmp_path: Path, checkpoint: Path) -> None:
    """Ctrl-C ends the server while its engine loads."""
    created = settings(tmp_path, checkpoint)
    code = (
        "import sys; from llama_stack_gpt_oss.process import server, settings; server.IDLE_SECONDS = 0;"
        " sys.exit(server.main(settings.EngineSettings.from_json(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, created.to_json()]
    ended = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    assert "loading has ended, because no server is connected any more" in ended.stderr
    assert "warming up" not in ended.stderr
    assert not created.socket.exists()


def test_missing_checkpoint_is_one_sentence_of_error(tmp_path: Path) -> None:
    client = EngineClient(settings(tmp_path, tmp_path / "nothing"))
    with pytest.raises(EngineError, match="is not a folder: give the checkpoint's folder, or a hub name"):
        client.start()


def test_process_that_cannot_be_started_is_one_sentence_of_error(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").touch()
    client = EngineClient(settings(tmp_path / "file", checkpoint))
    with pytest.raises(EngineError, match=r"The process of the gpt-oss engine cannot be started: .*File exists"):
        client.start()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "cuda"}, "torch finds no GPU"),
        (
            {"memory_share": 1e-9},
            r"has room for 0 tokens of context in its share of 0%, and 2,048 \(\d.\d GB\) are needed",
        ),
    ],
)
def test_insufficient_machine_is_one_sentence_of_error(
    tmp_path: Path, checkpoint: Path, changes: dict[str, object], sentence: str
) -> None:
    client = EngineClient(settings(tmp_path, checkpoint, **changes))
    with pytest.raises(EngineError, match=sentence):
        client.start()


def test_client_does_not_import_torch() -> None:
    code = "import sys, llama_stack_gpt_oss.process.client, llama_stack_gpt_oss.grammar; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_loading_progress_is_reported_to_waiting_client(tmp_path: Path, checkpoint: Path) -> None:
    created = settings(tmp_path, checkpoint)
    command = [sys.executable, "-m", "llama_stack_gpt_oss.process.server", created.to_json()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child, socket.socket(socket.AF_UNIX) as raw:
        while not created.socket.exists():
            assert child.poll() is None
        with address(created.socket) as name:
            wait_for(lambda: raw.connect_ex(name) == 0)  # the socket is there before it listens
        frames: list[dict[str, object]] = []
        for text in raw.makefile():
            frames.append(json.loads(text))
            if "ready" in frames[-1]:
                break
        child.kill()
        assert child.stderr is not None
        log = child.stderr.read()
    *loading, _ = [next(iter(frame)) for frame in frames]
    assert set(loading) == {"loading"}
    assert "100%" in log
    assert "4 of 4 layers" in log
