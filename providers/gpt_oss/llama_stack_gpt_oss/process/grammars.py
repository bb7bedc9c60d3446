"""Compiles the grammars of requests in a thread, so that the engine's steps go on meanwhile."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Final

from ..engine.engine import Request
from ..engine.errors import EngineError, QueueFullError, RequestError
from .hub import Peer

GRAMMAR_CHARACTERS: Final = 1 << 21
MAX_GRAMMARS: Final = 16  # of waiting requests, and so compiled grammars that are kept
MAX_SECONDS: Final = 30.0
"""Time limit for a grammar, with the time that it waits for others."""


@dataclass(eq=False, slots=True)
class Prepared:
    """A request whose grammar was compiled, or why it was not. wanted: its choices that were not cancelled."""

    peer: Peer
    request: Request
    submitted: float
    wanted: set[str]
    error: EngineError | None = None


class GrammarCompiler:
    """Owns the requests that wait for their grammars. All calls belong to the engine's thread."""

    def __init__(
        self,
        load: Callable[[], None],
        compile_grammar: Callable[[str], None],
        notify: Callable[[], None],
        max_requests: int,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Start the thread. All functions are called there.

        load: called first, for what all grammars need; its errors come again later. notify: called after each grammar.
        max_requests: maximum number of requests that wait.
        """
        self._max_requests = max_requests
        self._max_seconds = max_seconds
        self._notify = notify
        self._load = load
        self._compile = compile_grammar
        self._waiting: list[Prepared] = []
        self._new, self._done = SimpleQueue[Prepared](), SimpleQueue[Prepared]()
        threading.Thread(target=self._run, name="grammars", daemon=True).start()

    def seconds_left(self) -> float | None:
        """Return for how long the oldest waiting request may still wait; None if there is none."""
        if not self._waiting:
            return None
        return max(0.0, min(each.submitted for each in self._waiting) + self._max_seconds - time.monotonic())

    def submit(self, peer: Peer, request: Request) -> None:
        """Compile the grammar of a request. RequestError: it is too long. QueueFullError: too many wait."""
        if len(request.grammar or "") > GRAMMAR_CHARACTERS:
            raise RequestError(f"The schemas of the request are too long: at most {GRAMMAR_CHARACTERS:,} characters")
        if len(self._waiting) >= self._max_requests:
            raise QueueFullError(f"{self._max_requests} requests wait already for their grammars to be compiled")
        grammars = {each.request.grammar: each.request.grammar for each in self._waiting}
        if request.grammar in grammars:
            request = replace(request, grammar=grammars[request.grammar])  # equal texts are held once
        elif len(grammars) >= MAX_GRAMMARS:
            raise QueueFullError(f"{MAX_GRAMMARS} other grammars of requests wait already to be compiled")
        prepared = Prepared(peer, request, time.monotonic(), set(request.ids))
        self._waiting.append(prepared)
        self._new.put(prepared)

    def cancel(self, name: str) -> None:
        """Drop a waiting choice; its request too if no other one is left."""
        for each in self._waiting:
            each.wanted.discard(name)
        self._waiting = [each for each in self._waiting if each.wanted]

    def prepared(self) -> list[Prepared]:
        """Return the waiting requests that can go on, and those that have waited too long."""
        prepared: list[Prepared] = []
        with contextlib.suppress(Empty):
            while True:
                prepared.append(self._done.get_nowait())
        oldest = time.monotonic() - self._max_seconds
        late = f"The grammar of the request was not compiled within {self._max_seconds:.0f} seconds"
        for each in self._waiting:
            if each not in prepared and each.submitted <= oldest:
                each.error = RequestError(late)
                prepared.append(each)
        prepared = [each for each in prepared if each in self._waiting]
        self._waiting = [each for each in self._waiting if each not in prepared]
        return prepared

    def _run(self) -> None:
        with contextlib.suppress(EngineError):
            self._load()
        while True:
            prepared = self._new.get()
            if prepared.wanted and prepared.submitted > time.monotonic() - self._max_seconds:
                try:
                    self._compile(prepared.request.grammar or "")
                except EngineError as error:
                    prepared.error = error
            self._done.put(prepared)
            self._notify()
