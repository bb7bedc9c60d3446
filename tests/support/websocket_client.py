"""A WebSocket client that validates every event.

with WebSocketClient(stack) as websocket:
    websocket.ask(model="local/echo", input="Hi")
    response = websocket.response()                        # every event is validated
    websocket.ask(lane="b", model="local/echo", input="and?", previous_response_id=response["id"])
"""

import json
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from openai.types.responses import ResponsesServerEvent
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.conform import WireError, problems
from tests.support.strict import check_stream
from tests.support.wire import HttpEndpoint

type Json = dict[str, Any]

SECONDS: Final = 60.0
ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class WebSocketClient:
    """One connection, for a `with` block."""

    def __init__(self, stack: HttpEndpoint, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Connect; `websockets.InvalidStatus` if the connection is refused."""
        sent = dict(headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
        url = f"{stack.base_url.replace('http', 'ws', 1)}/v1/responses"
        self._open = ExitStack()
        # With compression, the repetitive texts of the tests would fill no buffer.
        options: Json = {"compression": None, "max_size": None, "max_queue": 1}
        options |= {"open_timeout": SECONDS, "close_timeout": 2.0}
        connection = connect(url, additional_headers=sent, proxy=None, **options)
        self.socket = self._open.enter_context(connection)
        self._waiting: defaultdict[str | None, deque[Json]] = defaultdict(deque)

    def __enter__(self) -> Self:
        """Return self, which is connected already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._open.close()

    def send(self, **event: Any) -> None:
        """Send an event."""
        self.socket.send(json.dumps(event))

    def ask(self, lane: str | None = None, **body: Any) -> None:
        """Request a response in this lane."""
        named = {} if lane is None else {"stream_id": lane}
        self.send(type="response.create", **named, **body)

    def steer(self, response_id: str, given: Any) -> None:
        """Steer a response."""
        self.send(type="response.steer", previous_response_id=response_id, input=given)

    def event(self, lane: str | None = None) -> Json:
        """Return the next event of this lane, validated; events of other lanes are queued."""
        while not self._waiting[lane]:
            event: Json = json.loads(self.socket.recv(SECONDS))
            if found := problems(ResponsesServerEvent, event):
                raise WireError(f"{event}: {list(map(str, found))}")
            self._waiting[event.get("stream_id")].append(event)
        return self._waiting[lane].popleft()

    def until(self, kind: str, lane: str | None = None) -> list[Json]:
        """Return the events of this lane up to the next one of this type."""
        events = [self.event(lane)]
        while events[-1]["type"] != kind:
            events.append(self.event(lane))
        return events

    def stream(self, lane: str | None = None, *, adapted: Collection[str] = ()) -> list[Json]:
        """Return the events of the next response in this lane, converted to their HTTP form and validated.

        `adapted` is as in `check_stream`.
        """
        events: list[Json] = []
        while not events or events[-1]["type"] not in ENDS:
            event = self.event(lane)
            if event["type"] == "error" and "sequence_number" not in event:
                raise AssertionError(f"no response but {event}")
            if not event["type"].startswith("response.steer."):
                events.append(over_http(event))
        check_stream(events, adapted=adapted)
        return events

    def response(self, lane: str | None = None, *, adapted: Collection[str] = ()) -> Json:
        """Return the next response in this lane; `adapted` as in `check_stream`."""
        found: Json = self.stream(lane, adapted=adapted)[-1]["response"]
        return found

    def error(self, lane: str | None = None) -> Json:
        """Return the next event in this lane, which must be an error, with its status."""
        event = self.event(lane)
        assert (event["type"], "sequence_number" in event) == ("error", False), event
        return {"status": event["status"], **event["error"]}

    def closed(self) -> tuple[int, str]:
        """Wait until the server closes the connection; return the code and the reason."""
        with suppress(ConnectionClosed):
            while True:
                self.socket.recv(SECONDS)
        return self.socket.close_code or 0, self.socket.close_reason or ""


def over_http(event: Json) -> Json:
    """Return a response's event without the fields that only WebSockets have."""
    plain = {name: value for name, value in event.items() if name != "stream_id"}
    if event["type"] != "error":
        return plain
    flat = {name: plain["error"][name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": plain["sequence_number"], **flat}
