"""A WebSocket from its handshake to its end, without a server around it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from openai.types.responses import ResponsesServerEvent
from starlette.types import Message
from starlette.websockets import WebSocket

from llama_stack_responses.admission import Admission, InFlightCounter
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.concurrency.share import Share
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.generation.connection_options import ConnectionOptions
from llama_stack_responses.generation.dependencies import Refused
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.lifecycle.shutdown import ShutdownCoordinator
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.service.refusals import Refusals
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset
from llama_stack_responses.wire.route_admission import RouteAdmission
from llama_stack_responses.wire.websocket.connection import HandshakeRefused, socket_route
from llama_stack_responses.wire.websocket.session import Caller
from tests.support.clock import LoopClock
from tests.support.conform import problems
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Round, finish, text
from tests.support.waiting import until

Json = dict[str, Any]

ASK: Json = {"type": "response.create", "model": "m", "input": "hi"}
HELLO = [text("Hello"), finish()]


class Responses:
    """Run responses with a fake provider, and store none."""

    def __init__(
        self, *rounds: Round, problem: Exception | None = None, connections: int = 10, **limits: float
    ) -> None:
        answers = {"streams_per_user": connections}
        self.config = ResponsesConfig.model_validate({"limits": {"websocket": limits, "answers": answers}})
        self.limits = RouteAdmission(
            self.config.limits, Owner, LargeWork(), lambda _: None, Admission(self.config.limits.stream_quota)
        )
        self.sockets = InFlightCounter()
        self.shutdown_coordinator = ShutdownCoordinator()
        self.access = self
        self.inference = FakeInference(*rounds)
        self.problem = problem
        self.refused: list[Refused] = []
        self.refusals = Refusals([self.refused.append], Activity(), Owner, time.time)
        self.runs: list[ForegroundRun] = []

    def start(self) -> None:
        """Do nothing: the tests need no background tasks."""

    def acting_for(self, *_: object) -> AbstractContextManager[None]:
        """Do nothing: there is only one user."""
        return nullcontext()

    async def create_on_connection(
        self, body: Json, connection: ConnectionOptions, hold: object = None
    ) -> ForegroundRun:
        """Return the run of a request."""
        if self.problem:
            raise self.problem
        request = parse_create(body)
        toolset, event_buffer = Toolset(request, client_tools()), EventBuffer(wanted=True)
        response = new_response(request, id=f"resp_{len(self.runs)}", created_at=1)
        assembler = Assembler(response, toolset.kind_of)
        turn = make_generation(
            request,
            request.input_items,
            toolset=toolset,
            assembler=assembler,
            inference=self.inference,
            event_buffer=event_buffer,
            limits=GenerationLimits(8, 1000.0, 1000.0),
            stop_point=connection.stop_point,
        )
        self.runs.append(ForegroundRun(turn, assembler, event_buffer, self._keep, self._drop, 60, bool))
        return self.runs[-1]

    async def _keep(self, _: Json) -> None: ...

    async def _drop(self) -> None: ...


class ScriptedAuthorizer:
    """Admit or refuse the callers in order; the last entry applies to all later requests."""

    def __init__(self, *callers: str | HandshakeRefused) -> None:
        self.callers = list(callers) or ["ada"]

    async def admit(self, *_: object) -> Caller:
        """Return the next caller."""
        caller = self.callers.pop(0) if len(self.callers) > 1 else self.callers[0]
        if isinstance(caller, HandshakeRefused):
            raise caller
        return Caller(Owner(caller), {})


class Client:
    """The client's end of a connection."""

    def __init__(
        self, responses: Responses, gatekeeper: ScriptedAuthorizer | None = None, reads: int | None = None
    ) -> None:
        """`reads` is the number of messages that the client reads; None for all."""
        self._reads = reads
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._news = asyncio.Event()
        self._incoming.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "headers": [],
            "path": "/v1/responses",
            "extensions": {"websocket.http.response": {}},
        }
        websocket = WebSocket(scope, self._incoming.get, self._send)
        serving: Any = responses
        self.talk = asyncio.ensure_future(
            socket_route(serving, gatekeeper or ScriptedAuthorizer(), responses.limits)(websocket)
        )

    def say(self, event: Json) -> None:
        """Send an event."""
        self._incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(event)})

    def leave(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def sees(self, holds: Callable[[list[Json]], bool]) -> list[Json]:
        """Return the events so far, as soon as `holds` is true for them."""
        async with asyncio.timeout(60):
            while not holds(self.events):
                self._news.clear()
                await self._news.wait()
        return self.events

    async def ends(self) -> tuple[int, list[str]]:
        """Return the server's close code, and the types of all events before it."""
        async with asyncio.timeout(60):
            await self.talk
        assert self.sent[-1]["type"] == "websocket.close"
        return self.sent[-1]["code"], [event["type"] for event in self.events]

    @property
    def events(self) -> list[Json]:
        """The events that were sent."""
        return [json.loads(message["text"]) for message in self.sent if message["type"] == "websocket.send"]

    async def _send(self, message: Message) -> None:
        if self._reads == len(self.sent):
            await asyncio.Event().wait()
        self.sent.append(message)
        self._news.set()


def has(kind: str) -> Callable[[list[Json]], bool]:
    return lambda events: any(event["type"] == kind for event in events)


async def test_response_on_a_connection_is_work_of_its_user() -> None:
    responses = Responses(HELLO)
    client = Client(responses)
    client.say(ASK)
    await client.sees(has("response.completed"))
    client.leave()
    await client.talk
    assert responses.inference.shares == [Share(Owner("ada").identity)]


async def test_idle_connection_is_closed() -> None:
    code, types = await Client(Responses(idle_seconds=0.01)).ends()
    assert (code, types) == (1001, [])


async def test_connection_with_running_response_is_not_idle(loop_clock: LoopClock) -> None:
    gate = asyncio.Event()
    client = Client(Responses([gate, *HELLO], idle_seconds=100.0))
    client.say(ASK)
    await client.sees(has("response.in_progress"))
    await loop_clock.passes(300.0)
    gate.set()
    await client.sees(has("response.completed"))
    await loop_clock.passes_until(client.talk.done)
    code, types = await client.ends()
    assert (code, types[-1]) == (1001, "response.completed")


LIMIT = "websocket_connection_limit_reached"


async def test_connection_is_closed_after_its_lifetime() -> None:
    client = Client(Responses(lifetime_seconds=0.01))
    code, types = await client.ends()
    assert (code, types) == (1001, ["error"])
    [event] = client.events
    assert problems(ResponsesServerEvent, event) == []
    assert (event["status"], event["error"]["code"]) == (400, LIMIT)


async def outlives(client: Client, loop_clock: LoopClock) -> None:
    """Let the hundred seconds of a connection pass while a response runs on it."""
    await client.sees(has("response.output_text.delta"))
    await loop_clock.passes(110.0)
    client.say(ASK | {"stream_id": "a"})
    await client.sees(has("error"))


async def test_running_response_finishes_after_connection_lifetime(loop_clock: LoopClock) -> None:
    """The running response finishes; queued and new requests are refused."""
    gate = asyncio.Event()
    client = Client(Responses([text("Half"), gate, finish()], lifetime_seconds=100))
    client.say(ASK)
    client.say(ASK)
    await outlives(client, loop_clock)
    gate.set()
    code, types = await client.ends()
    assert (code, types[-3:]) == (1001, ["response.completed", "error", "error"])
    errors = [event for event in client.events if event["type"] == "error"]
    assert [event["error"]["code"] for event in errors] == [LIMIT] * 3
    assert [event.get("stream_id") for event in errors] == ["a", None, None]


async def test_client_leaving_after_connection_lifetime_cancels_response(loop_clock: LoopClock) -> None:
    responses = Responses([text("Half"), asyncio.Event(), finish()], lifetime_seconds=100)
    client = Client(responses)
    client.say(ASK)
    await outlives(client, loop_clock)
    client.leave()
    async with asyncio.timeout(30):
        await client.talk
    await responses.runs[0].wait_ended()
    assert responses.runs[0].response["status"] == "cancelled"


async def test_host_refusal_of_handshake_is_passed_on_verbatim() -> None:
    refused = HandshakeRefused(
        418, {"content-type": "text/plain", "retry-after": "3"}, b"I am a teapot.", ApiError(418, "x")
    )
    client = Client(Responses(), ScriptedAuthorizer(refused))
    await client.talk
    start, body = client.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 418)
    assert {(b"content-type", b"text/plain"), (b"retry-after", b"3")} <= set(start["headers"])
    assert body["body"] == b"I am a teapot."


async def test_host_refusal_of_request_is_sent_as_error_event() -> None:
    """The connection itself refuses a request whose token now belongs to another user."""
    refused = HandshakeRefused(429, {}, b"", ApiError(429, "Quota exceeded", retry_after=9))
    client = Client(Responses(HELLO), ScriptedAuthorizer("ada", refused, "bob", "ada"))
    for _ in range(3):
        client.say(ASK)
    events = await client.sees(has("response.completed"))
    assert [(event["status"], event["error"]["message"][:5]) for event in events[:2]] == [
        (429, "Quota"),
        (401, "This "),
    ]
    assert events[0]["error"]["headers"] == {"retry-after": "9"}
    client.leave()
    await client.talk


async def test_unexpected_error_hides_its_text_and_keeps_connection() -> None:
    responses = Responses(HELLO, problem=RuntimeError("the secret is 1234"))
    client = Client(responses)
    client.say(ASK | {"stream_id": "a"})
    [event] = await client.sees(has("error"))
    assert (event["status"], event["stream_id"], event["error"]["type"]) == (500, "a", "server_error")
    assert "1234" not in json.dumps(event)
    responses.problem = None
    client.say(ASK)
    await client.sees(has("response.completed"))
    client.leave()
    await client.talk


async def test_burst_of_messages_does_not_block_other_tasks() -> None:
    """Other tasks run in between."""
    client = Client(Responses())
    for _ in range(100):
        client.say({"type": "noise"})
    assert len(await client.sees(has("error"))) < 100
    assert len(await client.sees(lambda events: len(events) == 100)) == 100
    client.leave()
    await client.talk


async def test_client_disconnect_cancels_response_and_drops_queue() -> None:
    responses = Responses([text("Half"), asyncio.Event(), finish()])
    client = Client(responses)
    client.say(ASK)
    client.say(ASK)
    await client.sees(has("response.output_text.delta"))
    client.leave()
    await client.talk
    await responses.runs[0].wait_ended()
    assert (len(responses.runs), responses.runs[0].response["status"]) == (1, "cancelled")
    assert responses.inference.streaming == 0


async def test_server_shutdown_ends_response_refuses_queue_and_closes() -> None:
    """The running response ends, the queued one is refused, and then the connection is closed."""
    responses = Responses([text("Half"), asyncio.Event(), finish()])
    client = Client(responses)
    client.say(ASK)
    client.say(ASK)
    await client.sees(has("response.output_text.delta"))
    responses.runs[0].shut_down()
    goodbye = responses.shutdown_coordinator.begin()
    code, types = await client.ends()
    assert (code, types[-2:]) == (1012, ["response.failed", "error"])
    assert client.events[-1]["status"] == 503
    assert goodbye
    await goodbye


async def test_client_that_reads_nothing_cancels_response() -> None:
    responses = Responses([text("Half"), asyncio.Event(), finish()], unread_seconds=0.01)
    client = Client(responses, reads=3)
    client.say(ASK)
    async with asyncio.timeout(60):
        await client.talk
    await responses.runs[0].wait_ended()
    assert responses.runs[0].response["status"] == "cancelled"


async def test_connection_over_limit_of_user_is_refused() -> None:
    responses = Responses(connections=1)
    first = Client(responses)
    await until(lambda: bool(first.sent))
    second = Client(responses)
    await second.talk
    assert second.sent[0]["status"] == 429
    first.leave()
    await first.talk
    third = Client(responses)
    await until(lambda: bool(third.sent))
    assert third.sent[0]["type"] == "websocket.accept"
    third.leave()
    await third.talk


async def test_refused_messages_and_connections_are_noted() -> None:
    responses = Responses(connections=1, message_bytes=100)
    client = Client(responses)
    await until(lambda: bool(client.sent))
    await Client(responses).talk
    client.say({"type": "response.create"})
    await until(lambda: len(responses.refused) == 2)
    client.say({"type": "response.create", "input": "x" * 100})
    await client.talk
    assert client.sent[-1]["code"] == 1009
    assert [each.error.status for each in responses.refused] == [429, 400, 413]


async def test_messages_are_released_after_processing() -> None:
    responses = Responses(HELLO)
    client = Client(responses)
    client.say(ASK)
    client.say({"type": "nonsense"})
    await client.sees(lambda events: any(event["type"] == "response.completed" for event in events))
    client.leave()
    await client.talk
    await until(lambda: responses.limits.bodies.held == 0)
