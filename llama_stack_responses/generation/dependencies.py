"""The dependencies of generations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..chat.inference import Inference
from ..concurrency.large_work import LargeWork
from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.types import Json
from ..inputs.attachments import Attachments
from ..inputs.moderation import Moderation
from ..inputs.prompts import Prompts
from ..process_pool.pool import WorkerPool
from ..requests.request import CreateRequest
from ..store.ends import AtEnd, OnEnd
from ..store.records import Op
from ..telemetry.instrumentation import Telemetry
from ..tools.registry import HostedToolServices
from .activity import Activity

Fill = Callable[[CreateRequest, LargeWork], Awaitable[CreateRequest]]
"""Returns a request with what it names filled in, large work in threads. Raises `ApiError` if that does not exist."""


class Permit(Protocol):
    """What a request may use, as a feature has admitted it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer that say what is left."""
        ...

    @property
    def counts(self) -> bool:
        """Whether what the request uses is counted."""
        ...

    def ops(self, response_id: str) -> Sequence[Op]:
        """Return what the commit that stores this background response writes."""
        ...

    def release(self) -> None:
        """End what is held for the request: its response has ended here, or goes on without it. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request to a model that creates no response, as limits see it."""

    model: str
    background: bool = False
    store: bool = False
    conversation: str | None = None
    input: str | list[Any] | None = None


Admit = Callable[[Owner, CreateRequest | PlainRequest], Awaitable[Permit]]
"""Admits a request of a user. Raises `ApiError` 429 if a limit is reached."""

AdmitItems = Callable[[Owner, Sequence[Json]], Awaitable[None]]
"""Admits items that a user stores in a conversation. Raises `ApiError` 429 if a limit is reached."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request for a response that was refused, so that there is no response, or whose failed response is not stored.

    Attributes:
        owner: whose request it was.
        error: why.
        body: the request's decoded JSON, which was not checked and may be large; None if it could not be read.
        request_id: the id of the HTTP request or of the WebSocket; empty if there is none.
        at: when, in seconds since the epoch, on the store's clock.
    """

    owner: Owner
    error: ApiError
    body: Any
    request_id: str
    at: float


OnRefused = Callable[[Refused], None]
"""Is called in the event loop for each of them. It keeps no body."""


@dataclass(frozen=True, slots=True)
class Card:
    """Something that a feature shows on the page, in the view of what runs now.

    Attributes:
        title: its title.
        sections: returns its sections for the current user: each a `title`, `at` in seconds since the epoch, `facts` in
            a few words each, `trouble` as a sentence or None, a table with `columns` and `rows` of texts, and an
            `entry` of the configuration or None, as `section` of `core/card_sections.py` makes it. Cards with the same
            title are shown as one.
        refresh: has what it shows found out again, at a user's wish; it bounds how often that is done. None if the
            sections are always made anew.
    """

    title: str
    sections: Callable[[], Awaitable[Sequence[Json]]]
    refresh: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class PageView:
    """A view that a feature adds to the page, from its folder `page/`, which has the module `<name>.js`.

    The module defines the element `ui-<name>`, a `View` of the page's `dom.js`, which is shown at `/ui/<name>`.

    Attributes:
        name: the name of the feature.
        title: what the page calls it.
        icon: its icon, a name of `ICONS` in `dom.js`.
        key: the letter that leads to it, after `g`.
        options: the property `options` of the element.
        of_operators: whether only operators are offered it, whom the setting `roles` names.
    """

    name: str
    title: str
    icon: str
    key: str
    options: Json = field(default_factory=dict)
    of_operators: bool = False


class Service(Protocol):
    """What is started and closed with the server."""

    @property
    def start(self) -> Callable[[], None]:
        """Starts its background tasks in the running event loop."""
        ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]:
        """Ends them, and closes what it holds open."""
        ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The stack's other providers, telemetry, and the process pool.

    Attributes:
        inference: runs the model rounds.
        attachments: resolves files and images for the models.
        prompts: the prompts that requests refer to; None if the stack has none.
        tool_services: the services that hosted tools use.
        moderation: moderates input and output.
        telemetry: records spans and metrics.
        pool: processes that handle untrusted content.
        features: the features, and what else is started and closed with the server.
        fills: complete requests, in order.
        keeps_chat_requests: whether the chat requests that model servers get are stored with each stored response.
        cards: what features show on the page, among what runs now.
        views: what features add to the page.
        at_end: say what the commit of a response's end writes for the features.
        on_end: are called once the end of a response is written.
        on_refused: are called for each request for a response that was refused.
        admit: admits requests; None admits all.
        admit_items: admits items of conversations; None admits all.
        activity: counts what this server does, and has the responses that it generates now.
    """

    inference: Inference
    attachments: Attachments
    prompts: Prompts | None
    tool_services: HostedToolServices
    moderation: Moderation
    telemetry: Telemetry
    pool: WorkerPool
    features: Sequence[Service] = ()
    fills: Sequence[Fill] = ()
    keeps_chat_requests: bool = False
    cards: Sequence[Card] = ()
    views: Sequence[PageView] = ()
    at_end: Sequence[AtEnd] = ()
    on_end: Sequence[OnEnd] = ()
    on_refused: Sequence[OnRefused] = ()
    admit: Admit | None = None
    admit_items: AdmitItems | None = None
    activity: Activity = field(default_factory=Activity)

    async def close(self) -> None:
        """Close the features and the process pool."""
        for feature in self.features:
            await feature.close()
        await self.pool.close()
