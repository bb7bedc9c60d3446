"""The rows of webhooks.

    wh/o/<of>/<endpoint>                an endpoint of an owner; the ids of endpoints are ordered by their times
    wh/c/<of>                           its version grows with each endpoint that the owner creates
    wh/e/<second>/<response>            the end of a background response, until there is a delivery for each endpoint
    wh/d/<endpoint>/<delivery>          a delivery; the ids of deliveries are ordered by their times
    wh/q/<endpoint>/<due>/<delivery>    the delivery is to be sent at this time, in milliseconds since the epoch; the
                                        value is the `of` of the endpoint's owner, empty for one of the configuration
    wh/l/<endpoint>                     a server delivers to the endpoint; the value is its worker
    wh/s/<endpoint>                     since when the endpoint fails, and whether it is disabled

`<of>` is a hash of the owner. Times in keys are hexadecimal. An event is in the partition of its response, and what is
of an endpoint in the home partition of its owner; endpoints of the configuration are in the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from ...core.owner import Owner
from ...core.types import Json
from ...store import codec
from ...store.records import Put

ENDPOINTS: Final = "wh/o/"
EVENTS: Final = "wh/e/"
DELIVERIES: Final = "wh/d/"
QUEUE: Final = "wh/q/"

DAY_SECONDS: Final = 86_400.0
_MAX_ATTEMPTS: Final = 20
"""Attempts whose answers are kept with a delivery, the last ones."""


class Secret(NamedTuple):
    """A signing secret of an endpoint.

    Attributes:
        sealed: the secret, sealed.
        hint: what is shown of it.
        expires_at: until when it signs too, in seconds since the epoch; None for the current one.
    """

    sealed: str
    hint: str
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A webhook endpoint of a user.

    Attributes:
        event_types: the event types to which it subscribes.
        created_at, updated_at: seconds since the epoch.
        secrets: the current one first.
    """

    id: str
    owner: Owner
    name: str
    url: str
    event_types: Sequence[str]
    created_at: int
    updated_at: int
    secrets: Sequence[Secret]

    def encode(self) -> bytes:
        """Return the value of its row."""
        fields = ("id", "name", "url", "event_types", "created_at", "updated_at")
        stored = {name: getattr(self, name) for name in fields}
        secrets = [list(each) for each in self.secrets]
        owner = [self.owner.principal, {}, self.owner.tenant]
        return codec.encode({**stored, "owner": owner, "secrets": secrets}, small=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the result of `encode`."""
        stored = codec.known(cls, codec.decode(value))
        secrets = [Secret(*each) for each in stored["secrets"]]
        return cls(**{**stored, "owner": Owner(*stored["owner"]), "secrets": secrets})


@dataclass(frozen=True, slots=True)
class Event:
    """The end of a background response.

    Attributes:
        of: the hash of the response's owner.
        at: when it ended, in seconds since the epoch.
    """

    type: str
    response: str
    of: str
    at: float

    @property
    def id(self) -> str:
        """Its id, which is always the same."""
        return f"evt_{_digest(self.type, self.response)[:24]}"

    def put(self, expires_at: float) -> Put:
        """Return the op that records it."""
        key = f"{EVENTS}{max(int(self.at), 0):08x}/{self.response}"
        return Put(key, codec.encode_small([self.type, self.response, self.of, self.at]), expires_at)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        return cls(*codec.decode(value))


class Attempt(NamedTuple):
    """An attempt to deliver.

    Attributes:
        at: seconds since the epoch.
        status: the status of the answer; None if there was none.
        text: the beginning of the answer, or why there was none.
    """

    at: int
    status: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event for an endpoint.

    Attributes:
        id: also the id of its message.
        of: the hash of the response's owner.
        created_at: when it was to be sent first, in seconds since the epoch; a delivery that is sent again begins anew.
        status: `waiting`, `delivered` or `failed`.
        tried: number of attempts since `created_at`.
        attempts: the last of all attempts.
    """

    id: str
    endpoint: str
    event: str
    type: str
    response: str
    of: str
    event_at: float
    created_at: float
    status: str = "waiting"
    tried: int = 0
    attempts: Sequence[Attempt] = ()

    @classmethod
    def of_event(cls, event: Event, endpoint: str, now: float) -> Self:
        """Return the delivery of an event to an endpoint, whose id is always the same."""
        own_id = f"wh_{max(int(event.at * 1000), 0):012x}{_digest(event.id, endpoint)[:12]}"
        return cls(own_id, endpoint, event.id, event.type, event.response, event.of, event.at, now)

    @property
    def key(self) -> str:
        """The key of its row."""
        return f"{DELIVERIES}{self.endpoint}/{self.id}"

    @property
    def body(self) -> Json:
        """The event, as it is sent."""
        return event_object(self.event, self.type, self.response, self.event_at)

    def after(self, attempt: Attempt, status: str) -> Self:
        """Return the delivery after an attempt."""
        attempts = [*self.attempts, attempt][-_MAX_ATTEMPTS:]
        return replace(self, status=status, tried=self.tried + 1, attempts=attempts)

    def put(self, kept_seconds: float) -> Put:
        """Return the op that stores it, for this time after `created_at`."""
        stored = {**asdict(self), "attempts": [list(each) for each in self.attempts]}
        return Put(self.key, codec.encode(stored, small=True), self.created_at + kept_seconds)

    def queued(self, endpoint_of: str, due: float) -> Put:
        """Return the op that has it sent at a time; `endpoint_of` is that of the endpoint's owner."""
        return Put(f"{QUEUE}{self.endpoint}/{due_part(due)}/{self.id}", endpoint_of.encode())

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        stored = codec.known(cls, codec.decode(value))
        return cls(**{**stored, "attempts": [Attempt(*each) for each in stored["attempts"]]})


class Queued(NamedTuple):
    """A row of the queue.

    Attributes:
        due: seconds since the epoch.
        endpoint_of: the hash of the endpoint's owner; empty for an endpoint of the configuration.
    """

    key: str
    endpoint: str
    due: float
    delivery: str
    endpoint_of: str

    @classmethod
    def read(cls, key: str, value: bytes) -> Self:
        """Return what a row of the queue says."""
        endpoint, due, delivery = key.removeprefix(QUEUE).split("/")
        return cls(key, endpoint, int(due, 16) / 1000, delivery, value.decode())


@dataclass(frozen=True, slots=True)
class State:
    """What is known of an endpoint that fails.

    Attributes:
        failing_since: the first failure after the last success, in seconds since the epoch.
        disabled_at: since when nothing is sent; None if it is.
        reason: why it is disabled.
    """

    failing_since: float
    disabled_at: float | None = None
    reason: str | None = None

    def put(self, endpoint: str, expires_at: float | None) -> Put:
        """Return the op that stores it."""
        return Put(state_key(endpoint), codec.encode(asdict(self), small=True), expires_at)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        return cls(**codec.known(cls, codec.decode(value)))


def event_object(event_id: str, kind: str, response_id: str, at: float) -> Json:
    """Return an event as it is sent: one of `openai.types.webhooks.UnwrapWebhookEvent`."""
    data: Mapping[str, Any] = {"id": response_id}
    return {"id": event_id, "object": "event", "created_at": int(at), "type": kind, "data": data}


def endpoint_key(of: str, endpoint: str) -> str:
    """Return the key of an endpoint of an owner."""
    return f"{ENDPOINTS}{of}/{endpoint}"


def lease_key(endpoint: str) -> str:
    """Return the key of the lease of the server that delivers to an endpoint."""
    return f"wh/l/{endpoint}"


def state_key(endpoint: str) -> str:
    """Return the key of the state of an endpoint."""
    return f"wh/s/{endpoint}"


def due_part(due: float) -> str:
    """Return the part of a key of the queue that orders it by time."""
    return f"{max(int(due * 1000), 0):012x}"


def event_time_of(delivery: str) -> float:
    """Return when the event of the delivery with this id happened, in seconds since the epoch."""
    return int(delivery.removeprefix("wh_")[:12], 16) / 1000


def configured_id(url: str) -> str:
    """Return the id of an endpoint of the configuration."""
    return f"we_{_digest('configuration', url)[:24]}"


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()
