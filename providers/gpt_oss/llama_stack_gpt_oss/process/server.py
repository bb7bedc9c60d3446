"""The engine process: loads the model, serves clients, and exits some time after the last one has disconnected.

python -m llama_stack_gpt_oss.process.server SETTINGS
"""

import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from ..engine.engine import Engine
from ..engine.errors import EngineError, QueueFullError
from ..engine.progress import Progress
from .frames import BAD_REQUEST, QUEUE_FULL, pack_update, unpack_request
from .grammars import GrammarCompiler, Prepared
from .hub import Hub, Peer
from .progress import ProgressBar
from .rank_processes import RankProcesses
from .settings import EngineSettings, address

ALREADY_RUNNING: Final = 3  # exit status if another process serves these settings
IDLE_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 1.0  # of an engine without work, which ends when it is idle


class Abandoned(Exception):  # noqa: N818 (a normal end)
    """No client has been connected for IDLE_SECONDS while the engine was loading."""


class EngineServer:
    """Runs the engine's steps, and handles the received frames between them."""

    def __init__(self, hub: Hub, engine: Engine, grammars: GrammarCompiler) -> None:
        self._hub = hub
        self._engine = engine
        self._grammars = grammars
        self._owners: dict[str, Peer] = {}
        self._reported = time.monotonic()

    def serve(self) -> None:
        """Serve until no client has been connected for IDLE_SECONDS."""
        while self._hub.idle_seconds < IDLE_SECONDS:
            for peer, frame in self._hub.poll(self._patience()):
                self._handle(peer, frame)
            for prepared in self._grammars.prepared():
                self._go_on(prepared)
            if self._engine.busy:
                self._step()
                self._report()

    def _handle(self, peer: Peer, frame: dict[str, Any] | None) -> None:
        match frame:
            case None:
                self._cancel([name for name, owner in self._owners.items() if owner is peer])
            case {"generate": raw}:
                self._generate(peer, raw)
            case {"cancel": names}:
                self._cancel([name for name in names if self._owners.get(name) is peer])
            case {"metrics": tag}:
                self._hub.send(peer, {"metrics": asdict(self._engine.metrics()), "tag": tag})

    def _patience(self) -> float:
        """Return for how many seconds to wait for frames, or for a compiled grammar."""
        if self._engine.busy:
            return 0.0
        left = self._grammars.seconds_left()
        return POLL_SECONDS if left is None else left

    def _generate(self, peer: Peer, raw: dict[str, Any]) -> None:
        try:
            request = unpack_request(raw)
            if request.grammar is None:
                self._engine.add(request)
            else:
                self._grammars.submit(peer, request)
        except EngineError as error:
            self._refuse(peer, raw["ids"], error)
        else:
            self._owners |= dict.fromkeys(request.ids, peer)

    def _go_on(self, prepared: Prepared) -> None:
        """Add a request whose grammar was compiled, without the choices that were cancelled meanwhile."""
        ids = prepared.request.ids
        try:
            if prepared.error is not None:
                raise prepared.error
            self._engine.add(prepared.request)
        except EngineError as error:
            for name in ids:
                self._owners.pop(name, None)
            self._refuse(prepared.peer, ids, error)
            return
        for name in set(ids) - prepared.wanted:
            self._engine.cancel(name)

    def _refuse(self, peer: Peer, ids: Sequence[str], error: EngineError) -> None:
        kind = QUEUE_FULL if isinstance(error, QueueFullError) else BAD_REQUEST
        self._hub.send(peer, {"refused": {"ids": ids, "kind": kind, "message": str(error)}})

    def _cancel(self, names: list[str]) -> None:
        for name in names:
            self._owners.pop(name, None)
            self._grammars.cancel(name)
            self._engine.cancel(name)

    def _step(self) -> None:
        """Run a step and send each peer one frame with the updates of all its sequences."""
        frames: dict[Peer, list[Any]] = {}
        for update in self._engine.step():
            owner = self._owners[update.id] if update.finish is None else self._owners.pop(update.id)
            frames.setdefault(owner, []).append(pack_update(update))
        for peer, updates in frames.items():
            self._hub.send(peer, {"updates": updates})

    def _report(self) -> None:
        """Log the metrics every REPORT_SECONDS while there is work."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        now = self._engine.metrics()
        _say(
            f"{now.tokens_per_second:.1f} tokens/s, {now.running} running, {now.waiting} waiting,"
            f" {now.pages_used / now.pages:.0%} of the KV cache, {now.cached_tokens / max(now.prompt_tokens, 1):.0%}"
            " of the prompt tokens were cached"
        )


def main(settings: EngineSettings) -> int:
    """Run the process; return the exit status."""
    # A terminal sends Ctrl-C to all processes. The server shuts down first, then the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = _lock(settings.socket.with_suffix(".lock"))
    if lock is None:
        return ALREADY_RUNNING
    with lock, _listen(settings.socket) as listener:
        hub = Hub(listener)
        with RankProcesses(settings, partial(_end, hub)) as ranks:
            try:
                engine, grammars = _load(settings, hub, ranks)
            except EngineError as error:
                return _fail(hub, str(error))
            except Abandoned:
                _say("loading has ended, because no server is connected any more")
            else:
                _serve(hub, engine, grammars)
        # A client that has just connected is disconnected, and starts the next engine.
        settings.socket.unlink(missing_ok=True)
    return 0


def _serve(hub: Hub, engine: Engine, grammars: GrammarCompiler) -> None:
    hub.greeting = {"ready": {"pid": os.getpid(), "context": engine.context, "pages": engine.metrics().pages}}
    hub.broadcast(hub.greeting)
    # The loaded objects live until the end, and a garbage collection of them takes as long as many steps.
    gc.freeze()
    EngineServer(hub, engine, grammars).serve()


def _load(settings: EngineSettings, hub: Hub, ranks: RankProcesses) -> tuple[Engine, GrammarCompiler]:
    # Importing torch takes seconds, and the client must be able to connect before.
    from .assembly import assemble, masks_of

    bar = ProgressBar(sys.stderr)

    def report(progress: Progress) -> None:
        bar.show(progress)
        hub.greeting = {"loading": asdict(progress)}
        hub.broadcast(hub.greeting)
        for _ in hub.poll(0):
            pass  # requests are not accepted before the engine is ready
        if hub.idle_seconds > IDLE_SECONDS:
            raise Abandoned

    masks = masks_of(settings)
    # It reads the vocabulary while the weights load.
    grammars = GrammarCompiler(masks.load, masks.compile, hub.wake, settings.sequences + settings.waiting)
    return assemble(settings, report, ranks, masks.open), grammars


def _fail(hub: Hub, sentence: str) -> int:
    """Send the error to all clients, including those about to connect."""
    _say(sentence)
    hub.greeting = {"failed": sentence}
    hub.broadcast(hub.greeting)
    deadline = time.monotonic() + 1.0
    while (left := deadline - time.monotonic()) > 0 and (hub.peers or left > 0.5):
        for _ in hub.poll(left):
            pass
    return 1


def _end(hub: Hub, sentence: str) -> NoReturn:
    """End this process after the failure of another rank, from any thread: the main one may wait for that rank."""
    _say(sentence)
    hub.farewell({"failed": sentence})
    os._exit(1)


def _say(text: str) -> None:
    """Write to the log of the server that started this process."""
    sys.stderr.write(f"gpt-oss: {text}\n")
    sys.stderr.flush()


def _lock(path: Path) -> contextlib.AbstractContextManager[object] | None:
    """Lock the file for the lifetime of this process; None if another process holds the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = path.open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with address(path) as name:
            listener.bind(name)
    finally:
        os.umask(mask)
    listener.listen(64)
    return listener


if __name__ == "__main__":
    sys.exit(main(EngineSettings.from_json(sys.argv[1])))
