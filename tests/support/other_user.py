"""A user who sends small requests again and again while the test loads the server.

with OtherUser(stack, "token-of-bob", clock) as other_user:
    with other_user.watched():
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
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire, final, output_text

SECONDS: Final = 1.0
"""Time limit for one request on the machine's clock, without the time that its threads wait for a processor."""
PAUSE: Final = 0.5
"""Seconds between two rounds, unless a test waits for one: less than the limit, so that no wait above it passes unseen
for long, and enough that the user's own requests take little of the processors that attack and server need."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One answered request.

    Attributes:
        what: kind of request.
        began, ended: times on the monotonic clock.
        queued: seconds that its threads were ready to run but had no processor.
    """

    what: str
    began: float
    ended: float
    queued: float


class OtherUser:
    """A thread that repeatedly creates, retrieves, lists and streams responses, and takes a turn on a WebSocket."""

    def __init__(self, stack: LiveStack, token: str, clock: MachineClock, model_server: int) -> None:
        """Create the user. `model_server` is the process id of the model server."""
        self._stack = stack
        self._token = token
        self._clock = clock
        self._places = (str(stack.pid), str(model_server), "thread-self")
        self._answered: list[AnsweredRequest] = []
        self._begun = 0
        self._rounds = 0
        self._asked = Event()
        self._failure: BaseException | None = None
        self._ended = Event()
        self._thread = Thread(target=self._run, name="other-user", daemon=True)

    def __enter__(self) -> Self:
        """Start, and wait for the end of the first round."""
        self._thread.start()
        self.wait_for_a_round()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._ended.set()
        self._asked.set()
        self._thread.join(120)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Require a correct answer in time for each request during the block, and in one round after it."""
        before = len(self._answered)
        yield
        self.wait_for_a_round()
        took = [(self._net(each), each.what) for each in self._answered[before:]]
        late = [f"{what}: {seconds:.2f} s" for seconds, what in took if seconds > SECONDS]
        assert not late, f"the other user waited: {late}"

    def wait_for_a_round(self) -> None:
        """Wait until a round has begun and ended since the call."""
        wanted = self._begun + 1  # not the current round, which may have begun before
        self._asked.set()
        wait_until(lambda: self._failure is not None or self._rounds >= wanted)
        if self._failure is not None:
            raise AssertionError("the other user was not served") from self._failure

    def _net(self, answered: AnsweredRequest) -> float:
        # Twice: uncounted threads of a process, such as those that write to the store, wait equally long.
        return self._clock.between(answered.began, answered.ended) - 2 * answered.queued

    def _run(self) -> None:
        try:
            with ExitStack() as opened:
                wire = opened.enter_context(Wire(self._stack, self._token, idle_seconds=2.0))
                websocket = opened.enter_context(WebSocketClient(self._stack, self._token))
                while not self._ended.is_set():
                    self._asked.clear()
                    self._begun += 1
                    with self._clock.running():
                        self._round(wire, websocket)
                    self._rounds += 1
                    self._asked.wait(PAUSE)
        except BaseException as failure:  # noqa: BLE001 - the test's thread raises it
            self._failure = failure

    def _round(self, wire: Wire, websocket: WebSocketClient) -> None:
        words = f"round {self._rounds}"
        body = {"model": "local/echo", "input": words}
        began = self._now()
        response = wire.create(**body)
        began = self._note("create", began)
        assert wire.retrieve(response["id"]) == response
        began = self._note("retrieve", began)
        [listed] = wire.listed(limit=1, model="local/echo")
        began = self._note("list", began)
        streamed = final(wire.stream(**body, store=False))
        began = self._note("stream", began)
        websocket.ask(**body, store=False)
        spoken = websocket.response()
        self._note("WebSocket turn", began)
        assert [output_text(each) for each in (response, streamed, spoken)] == [words] * 3
        assert listed["id"] == response["id"]

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), queued_seconds(*self._places)

    def _note(self, what: str, began: tuple[float, float]) -> tuple[float, float]:
        now = self._now()
        self._answered.append(AnsweredRequest(what, began[0], now[0], now[1] - began[1]))
        return now
