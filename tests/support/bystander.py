"""A user who goes on with small requests while something else happens to the server.

with Bystander(stack, "token-of-bob", clock) as bystander:
    with bystander.watched():
        ...
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, Self

from tests.support.machine_clock import MachineClock, queued_seconds
from tests.support.stack import LiveStack
from tests.support.talk import Talk
from tests.support.waiting import wait_until
from tests.support.wire import Wire, final, output_text

SECONDS: Final = 1.0
"""For which one request may take of the machine's clock, without the time in which those who serve it are not run."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request.

    Attributes:
        what: it is.
        began, ended: when it did, on the monotonic clock.
        queued: seconds for which the threads that serve it were ready to run, and had no processor.
    """

    what: str
    began: float
    ended: float
    queued: float


class Bystander:
    """Creates, retrieves, lists, streams, and takes a turn on a WebSocket, again and again, in a thread."""

    def __init__(self, stack: LiveStack, token: str, clock: MachineClock, model_server: int) -> None:
        """`model_server` is its process id."""
        self._stack = stack
        self._token = token
        self._clock = clock
        self._places = (str(stack.pid), str(model_server), "thread-self")
        self._answered: list[Answered] = []
        self._rounds = 0
        self._failure: BaseException | None = None
        self._ended = Event()
        self._thread = Thread(target=self._run, name="bystander", daemon=True)

    def __enter__(self) -> Self:
        """Start, and return with the first round done."""
        self._thread.start()
        self._wait_for_rounds(1)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join(120)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Each request during the block, and those of a round after it, has the right answer in time."""
        before = len(self._answered)
        yield
        self.wait_for_a_round()
        took = [(self._net(each), each.what) for each in self._answered[before:]]
        late = [f"{what}: {seconds:.2f} s" for seconds, what in took if seconds > SECONDS]
        assert not late, f"the other user waited: {late}"

    def wait_for_a_round(self) -> None:
        """Return when a round has begun and ended since the call."""
        self._wait_for_rounds(self._rounds + 2)  # the round that goes on now, and the one after it

    def _net(self, answered: Answered) -> float:
        # Twice: the threads of a process that are not counted, such as those that write to the store, wait as long.
        return self._clock.between(answered.began, answered.ended) - 2 * answered.queued

    def _wait_for_rounds(self, rounds: int) -> None:
        wait_until(lambda: self._failure is not None or self._rounds >= rounds, 120)
        if self._failure is not None:
            raise AssertionError("the other user was not served") from self._failure

    def _run(self) -> None:
        try:
            with ExitStack() as opened:
                wire = opened.enter_context(Wire(self._stack, self._token, idle_seconds=2.0))
                talk = opened.enter_context(Talk(self._stack, self._token))
                while not self._ended.is_set():
                    self._round(wire, talk)
                    self._rounds += 1
        except BaseException as failure:  # noqa: BLE001 - the test's thread raises it
            self._failure = failure

    def _round(self, wire: Wire, talk: Talk) -> None:
        words = f"round {self._rounds}"
        body = {"model": "local/echo", "input": words}
        began = self._now()
        made = wire.create(**body)
        began = self._note("create", began)
        assert wire.retrieve(made["id"]) == made
        began = self._note("retrieve", began)
        [listed] = wire.listed(limit=1, model="local/echo")
        began = self._note("list", began)
        streamed = final(wire.stream(**body, store=False))
        began = self._note("stream", began)
        talk.ask(**body, store=False)
        spoken = talk.response()
        self._note("WebSocket turn", began)
        assert [output_text(each) for each in (made, streamed, spoken)] == [words] * 3
        assert listed["id"] == made["id"]

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), queued_seconds(*self._places)

    def _note(self, what: str, began: tuple[float, float]) -> tuple[float, float]:
        now = self._now()
        self._answered.append(Answered(what, began[0], now[0], now[1] - began[1]))
        return now
