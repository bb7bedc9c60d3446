"""Settings that bound requests, answers, connections and background responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from ..admission import Quota
from ..core import shapes


class SocketLimits(BaseModel):
    """Limits of one WebSocket connection.

    Attributes:
        message_bytes: maximum size of one message. The hosts' own server accepts no message over 16 MiB.
        lifetime_seconds: maximum age of a connection; responses that are running then still finish.
        idle_seconds: time after which a connection without requests and running responses is closed.
        unread_seconds: maximum time for which a client may read nothing; then its responses end.
        responses: maximum number of responses that run at the same time.
        waiting: maximum number of additional requests that wait for a free slot.
        streams: maximum number of different stream names (`stream_id`) on a connection.
        remembered_bytes: maximum size of the histories of responses with `store: false` that one connection remembers:
            as JSON, plus 160 bytes for each value.
        remembered_bytes_per_user: maximum size of the remembered histories of all connections of one user to a server
            process.
        remembered_total_bytes: the same for all users.
        steers: maximum number of queued inputs that steer one response.
    """

    model_config = ConfigDict(extra="forbid")

    message_bytes: int = Field(default=16 * 2**20, ge=1, le=16 * 2**20)
    lifetime_seconds: float = Field(default=3600.0, gt=0)
    idle_seconds: float = Field(default=3600.0, gt=0)
    unread_seconds: float = Field(default=60.0, gt=0)
    responses: int = Field(default=16, ge=1)
    waiting: int = Field(default=64, ge=0)
    streams: int = Field(default=32, ge=0)
    remembered_bytes: int = Field(default=64 * 2**20, ge=0)
    remembered_bytes_per_user: int = Field(default=256 * 2**20, ge=2**16)
    remembered_total_bytes: int = Field(default=512 * 2**20, ge=2**16)
    steers: int = Field(default=16, ge=1)


class BodyLimits(BaseModel):
    """Limits of the request bodies that a server process reads and holds at the same time.

    Attributes:
        seconds: time limit for a body that arrives more slowly than 16 KiB a second.
        total_bytes: maximum bytes that all requests hold together, including the values decoded from their JSON; also
            the maximum of what the inputs of running background responses hold, which wait if they have no room.
        bytes_per_user: maximum bytes that the requests of one user hold.
        json_values: maximum number of arrays, objects and members in one JSON document.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=60.0, gt=0)
    total_bytes: int = Field(default=768 * 2**20, ge=1)
    bytes_per_user: int = Field(default=384 * 2**20, ge=1)
    json_values: int = Field(default=500_000, ge=1)


class AnswerLimits(BaseModel):
    """Limits of the answers that a server process sends at the same time.

    Attributes:
        unread_seconds: maximum time for which a client may read nothing of an answer; then its connection is closed.
        streams: maximum number of open event streams and WebSockets of all users.
        streams_per_user: the same for one user.
        downloads: maximum number of files that are being sent to all users.
        downloads_per_user: the same for one user.
        total_bytes: maximum bytes of JSON answers of more than 64 KiB that are being sent, and of stored responses that
            are read for them or replayed, for all users.
        bytes_per_user: the same for one user.
    """

    model_config = ConfigDict(extra="forbid")

    unread_seconds: float = Field(default=60.0, gt=0)
    streams: int = Field(default=4096, ge=1)
    streams_per_user: int = Field(default=1024, ge=1)
    downloads: int = Field(default=512, ge=1)
    downloads_per_user: int = Field(default=128, ge=1)
    total_bytes: int = Field(default=512 * 2**20, ge=1)
    bytes_per_user: int = Field(default=256 * 2**20, ge=1)


class Limits(BaseModel):
    """Limits of requests: of one, of one user's, and of all that a process handles.

    Attributes:
        request_bytes: maximum size of a request's body, and of all items that it refers to, as JSON.
        input_items: maximum number of items in one request.
        mcp_servers: maximum number of MCP servers of one response.
        history_bytes: maximum size of the part that one request reads of the responses or the conversation that it
            continues: as JSON, plus 160 bytes for each value. It counts as held with the request's body, so that no
            more of it is read than `bodies.bytes_per_user`.
        prompt_characters: maximum length of a stored prompt with its variables filled in.
        responses: maximum number of foreground responses and compactions that a server process runs at the same time,
            streamed or not, over HTTP and WebSockets.
        responses_per_user: maximum number of them for one authenticated user. A stack without authentication has one
            user, who may have all.
        scanned_responses: maximum number of responses that a list filtered by model scans for one page.
        rounds: maximum number of model rounds of one response, the last without hosted tools; beyond that it ends as
            incomplete (`max_messages`).
        repeated_rounds: maximum number of model rounds one after another that make the same calls with the same
            results; the next one has no hosted tools.
        output_bytes: maximum size of one response's output, counted in characters of text, reasoning, refusals,
            arguments of calls, log probabilities and annotations; past it the response ends as incomplete
            (`max_output_tokens`), and the connection to the model server is closed.
        output_events: maximum number of events of one response; past it the response ends in the same way.
        tool_output_bytes: maximum size of what hosted tools return in one response, counted in characters of the
            results that the model and the client get; past it, the model gets an error instead of further results.
        decoding_bytes: maximum bytes that the large stored values which a server process decodes at the same time may
            take, with their JSON; further ones wait.
        inference_idle_seconds: time after which a response fails if the provider sends nothing.
        tool_seconds: time limit of one call of a hosted tool; past it, the model gets a message about the timeout.
        bodies: limits of the request bodies that are held at the same time.
        answers: limits of the answers that are sent at the same time.
        websocket: limits of one WebSocket connection.
    """

    model_config = ConfigDict(extra="forbid")

    request_bytes: int = Field(default=64 * 2**20, ge=1)
    history_bytes: int = Field(default=128 * 2**20, ge=1)
    input_items: int = Field(default=20_000, ge=1)
    mcp_servers: int = Field(default=32, ge=1, le=1_024)
    prompt_characters: int = Field(default=10_485_760, ge=1)
    responses: int = Field(default=4096, ge=1)
    responses_per_user: int = Field(default=1024, ge=1)
    scanned_responses: int = Field(default=10_000, ge=1)
    rounds: int = Field(default=64, ge=1)
    repeated_rounds: int = Field(default=8, ge=2)
    output_bytes: int = Field(default=32 * 2**20, ge=1)
    output_events: int = Field(default=500_000, ge=1)
    tool_output_bytes: int = Field(default=64 * 2**20, ge=1)
    decoding_bytes: int = Field(default=48 * 2**20, ge=2**20)
    inference_idle_seconds: float = Field(default=600.0, gt=0)
    tool_seconds: float = Field(default=300.0, gt=0)

    @property
    def request_limits(self) -> shapes.RequestLimits:
        """The limits that apply while a request is parsed."""
        return shapes.RequestLimits(max_items=self.input_items, max_mcp_servers=self.mcp_servers)

    @property
    def response_quota(self) -> Quota:
        """The limits on running foreground responses."""
        return Quota("running responses", self.responses, self.responses_per_user, authenticated_only=True)

    @property
    def stream_quota(self) -> Quota:
        """The limits on open event streams and WebSockets."""
        return Quota("streams", self.answers.streams, self.answers.streams_per_user)

    @property
    def job_input_quota(self) -> Quota:
        """The limits on what the inputs of running background responses hold, apart from request bodies."""
        return Quota("inputs of background responses", self.bodies.total_bytes, self.bodies.bytes_per_user)

    @property
    def history_of_one(self) -> int:
        """`history_bytes`, capped by the body limits of one user."""
        return min(self.history_bytes, self.bodies.bytes_per_user, self.bodies.total_bytes)

    bodies: BodyLimits = Field(default_factory=BodyLimits)
    answers: AnswerLimits = Field(default_factory=AnswerLimits)
    websocket: SocketLimits = Field(default_factory=SocketLimits)

    @model_validator(mode="after")
    def _admits_the_largest_body(self) -> Limits:
        if self.bodies.bytes_per_user < self.request_bytes or self.bodies.total_bytes < self.request_bytes:
            raise ValueError("'bodies.bytes_per_user' and 'bodies.total_bytes' must be at least 'request_bytes'")
        return self


class ModelServerLimits(BaseModel):
    """Limits of what one server process asks of the model server of one inference provider.

    Attributes:
        concurrency: maximum number of model rounds at a time; further ones wait, and users take turns. A provider
            without an entry here has no limit.
        concurrency_per_user: maximum number of these that belong to one authenticated user; null is three quarters of
            `concurrency`. A stack without authentication has one user, who may have all.
        waiting_per_user: maximum number of new responses of one user that wait; further ones get a 429.
        wait_seconds: time after which a round that still waits fails, unless its response runs in the background.
    """

    model_config = ConfigDict(extra="forbid")

    concurrency: int = Field(ge=1, examples=[32])
    concurrency_per_user: int | None = Field(default=None, ge=1)
    waiting_per_user: int = Field(default=1024, ge=0)
    wait_seconds: float = Field(default=600.0, gt=0)

    @model_validator(mode="after")
    def _has_room_for_one_user(self) -> ModelServerLimits:
        if self.of_one_user > self.concurrency:
            raise ValueError("'concurrency_per_user' must be at most 'concurrency'")
        return self

    @property
    def of_one_user(self) -> int:
        """The rounds that one authenticated user may have at a time."""
        return self.concurrency_per_user or max(1, self.concurrency * 3 // 4)


class BackgroundWork(BaseModel):
    """Limits of background responses (`background: true`).

    Attributes:
        concurrency: maximum number that one server process runs at a time.
        waiting: maximum number in the queue, over all servers on the same store; further requests get a 429. Those that
            can wait have as many places of their own, for windows and for `flex`.
        concurrency_per_user: maximum number of one authenticated user that one server process runs at a time; null is
            three quarters of `concurrency`.
        concurrency_deferred: maximum number that one server process runs at a time of those that can wait: with a
            `completion_window` of `2h` or `8h`, with the `service_tier` `flex`, and of batches; null is three quarters
            of `concurrency`.
        per_user: maximum number of queued and running responses of one authenticated user, over all servers on the
            same store; null is a quarter of `waiting`; further requests get a 429. A stack without authentication has
            one user, who may use all.
        at_once: maximum number that one server process runs at a time of each model, by a pattern such as
            `local/slow-*`, so that a slow model does not hold all workers; of several patterns, the first counts.
        event_log_seconds: time for which the event log of a finished response is kept. After that, its events are
            generated again from the stored response.
    """

    model_config = ConfigDict(extra="forbid")

    concurrency: int = Field(default=16, ge=1)
    waiting: int = Field(default=1000, ge=1)
    concurrency_per_user: int | None = Field(default=None, ge=1)
    concurrency_deferred: int | None = Field(default=None, ge=1)
    per_user: int | None = Field(default=None, ge=1)
    at_once: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    event_log_seconds: float = Field(default=600.0, ge=0)
