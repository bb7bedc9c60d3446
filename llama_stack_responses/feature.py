"""What a feature brings to a server, and what it may use of the stack.

A feature is a folder of `features/`. What the core reads of it is in modules with these names, each of which it may
have or lack:

- `kinds.py` with `KINDS`, a `Kinds` of `items/kind.py`: its kinds of items and types of tools. It is imported with
  the checks of requests, and imports only `core/shapes.py`, `core/item_fields.py`, `items/kind.py` and what is below.
- `settings.py` with a `FeatureSettings` of `core/feature_settings.py` for each of its keys of the configuration, and a
  `ProfileSettings` for each of those of single models. It is imported before the configuration, and imports only
  `admission.py` and what is below it.
- `stored.py` with `open_store(records, decoder) -> FeatureStore`: what it keeps for users in the store
  (`store/feature_store.py`), so that it is counted, exported and deleted with all that a user has. It is imported
  when that is done.
- `unfinished.py` with `open_unfinished(records, decoder) -> Finish`: what finishes its deletions that were interrupted,
  whenever expired responses are deleted. A feature that deletes in one commit has none.
- `on_request.py` with `open_on_request(records, decoder, config) -> OwnedObjects`: what it keeps of users that is
  exported and deleted only if the command has the option with the name of the feature.
- `tier.py` with `open_tier(records, config, telemetry) -> Records`: what it puts between the store and those that use
  it, by `Moving` of `store/records.py`. It is imported with the store, so it imports nothing that takes long.
- `feature.py` with `open_feature(stack: Stack) -> Feature`, which is called once, when the stack starts. It runs in an
  event loop that does not serve requests, so nothing that it creates may be bound to a loop. What only a stack
  with certain settings uses is imported once it has read them, so that no other start takes the time.
- `page/` with the files of its `PageView`s, which are served below `/ui/features/<name>/`.
- `commands.py` with `add_commands(commands)`, which adds its commands to the subparsers of the program, each with its
  function as the default of `run`. It is imported with the program, so it imports nothing that takes long. The function
  gets the arguments, and opens the store with `with_store` of `commands/opened_store.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .admission import Admission, Reservation
from .chat.inference import Inference
from .concurrency.large_work import LargeWork
from .config import ResponsesConfig
from .core.access import Authenticate
from .core.moderation_results import Kind, Side
from .core.owner import Owner
from .core.types import Json
from .fetch.address_policy import AddressPolicy
from .fetch.fetcher import Fetcher, FetchLimits
from .generation.activity import Activity
from .generation.dependencies import Admit, AdmitItems, Card, Fill, OnRefused, PageView, Permit, PlainRequest, Refused
from .inputs.files import Files
from .inputs.large_files import UploadedFiles
from .inputs.moderation import Moderation
from .process_pool.pool import WorkerPool
from .requests.request import CreateRequest
from .sealing.sealer import Sealer
from .service.responses import OpenAIResponsesImpl
from .store.ends import AtEnd, Ended, OnEnd
from .store.object_events import ObjectEvent, ObjectEvents
from .store.records import Records
from .telemetry.instrumentation import Telemetry
from .tools.hosted.runtime import ToolRuntime
from .tools.hosted.vector_stores import VectorStores
from .tools.registry import HostedTool
from .wire.operators import Operators
from .wire.public_routes import PublicRoute, PublicRoutes
from .wire.request_handling import routes_within
from .wire.response_routes import Routes
from .wire.route_admission import RouteAdmission

__all__ = [
    "Admit",
    "AtEnd",
    "Card",
    "CreateRequest",
    "Ended",
    "Feature",
    "LargeWork",
    "ObjectEvent",
    "OnEnd",
    "OnRefused",
    "PageView",
    "Permit",
    "PlainRequest",
    "PublicRoute",
    "PublicRoutes",
    "Refused",
    "RouteAdmission",
    "Routes",
    "Stack",
    "TextChecker",
    "routes_within",
]


class TextChecker(Protocol):
    """A service that checks texts, such as the stack's safety provider."""

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """Return the result for a text: a `moderation_result` of OpenAI's response.

        Args:
            kind: whether `name` is that of a model, or of a guardrail.
            name: the model or guardrail; None for the default one.
            side: whether the text is input or output.

        Raises:
            ApiError: it does not exist, or the check failed.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class PlainInference(Protocol):
    """Asks the models of the stack without the Responses API."""

    async def answer(self, endpoint: str, body: Json) -> Json:
        """Return the answer to a request of the current user.

        Args:
            endpoint: `/v1/chat/completions`, `/v1/completions` or `/v1/embeddings`.
            body: the request's decoded JSON.

        Raises:
            ApiError: the request is invalid, or the model server refuses it or fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class Stack:
    """What features use of the stack. A service that the stack lacks is None.

    Attributes:
        config: the configuration; a feature reads its own part with the `of` of its `FeatureSettings`.
        current_user: returns the current user.
        records: the store.
        files: the stored files.
        contents: counts the bytes of contents that users hold.
        address_policy: which addresses may be connected to for users and models.
        pool: processes that handle untrusted content.
        runtime: the tools of the stack's own tool runtimes.
        safety: the stack's safety provider.
        vector_stores: the stack's vector stores.
        large_files: the stored files, without holding them in memory.
        inference: asks the models of the stack.
        models: returns the names of those that the current user may use, or all without a user.
        telemetry: records metrics.
        activity: counts what the server does, and has the responses that it generates now.
        sealer: seals what features store for users.
        plain_inference: asks the models without the Responses API.
        events: tells features what becomes of the objects of others.
        operators: admits those who may act for others, as the setting `roles` says, and has the audit log.
    """

    config: ResponsesConfig
    current_user: Callable[[], Owner]
    records: Records
    files: Files
    contents: Admission
    address_policy: AddressPolicy
    pool: WorkerPool
    runtime: ToolRuntime
    inference: Inference
    models: Callable[[], Awaitable[Sequence[str]]]
    telemetry: Telemetry
    activity: Activity
    sealer: Sealer
    plain_inference: PlainInference
    events: ObjectEvents
    operators: Operators
    safety: TextChecker | None = None
    vector_stores: VectorStores | None = None
    large_files: UploadedFiles | None = None

    def fetcher(self, max_bytes: int) -> Fetcher:
        """Return what fetches the URLs of users and models, up to this size."""
        fetching = self.config.fetch
        return Fetcher(self.address_policy, FetchLimits(max_bytes, fetching.seconds, fetching.redirects))

    def reserve(self) -> Reservation:
        """Return a reservation of the current user for contents."""
        return self.contents.reserve(self.current_user())


def _nothing() -> None:
    """Do nothing: the feature has no background tasks."""


def _nothing_to_connect(_: OpenAIResponsesImpl) -> None:
    """Do nothing: what the feature brings does not use the API itself."""


async def _nothing_to_close() -> None:
    """Do nothing: the feature holds nothing open."""


@dataclass(frozen=True, slots=True)
class Feature:
    """What a feature brings to a server.

    Attributes:
        tools: the hosted tools that this stack can run, by their type. A tool of `KINDS` that is not among them is
            refused or left out, as the setting `unavailable_tools` says.
        moderation: moderates input and output. At most one feature does.
        routes: its routes.
        public_routes: its routes that need no token.
        replaces: the names of APIs of the host whose routes it brings itself, so that the host serves none of them.
        keeps_chat_requests: whether the chat requests that model servers get are stored with each stored response.
        cards: what it shows on the page, in the view of what runs now.
        views: its own views of the page.
        connect: gets the implementation of the API, for what the feature does beside its routes: to create responses,
            to know the worker of this server, or to share work with other servers. It is called once, before the
            routes are created and the background tasks start, in an event loop that does not serve requests.
        start: starts its background tasks, in the event loop that serves requests; called once.
        close: ends them, and closes what the feature holds open.
        fill: completes a request after its stored prompt, before it is stored and run.
        authenticate: answers the host's auth for tokens. At most one feature does.
        at_end: says what the commit that stores the end of a response writes for the feature, exactly once for each
            response that was run here, however it ended and whether or not it is stored itself.
        on_end: is called once that is written. If a server is killed in between, it is not.
        on_refused: is called for each request for a response that was refused, so that there is no response.
        admit: admits requests for responses within limits. At most one feature does.
        admit_items: admits items that users store in conversations. At most one feature does.
    """

    tools: Mapping[str, HostedTool] = field(default_factory=dict)
    moderation: Moderation | None = None
    routes: Sequence[Routes] = ()
    public_routes: Sequence[PublicRoutes] = ()
    replaces: Sequence[str] = ()
    keeps_chat_requests: bool = False
    cards: Sequence[Card] = ()
    views: Sequence[PageView] = ()
    connect: Callable[[OpenAIResponsesImpl], None] = _nothing_to_connect
    start: Callable[[], None] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    fill: Fill | None = None
    authenticate: Authenticate | None = None
    at_end: AtEnd | None = None
    on_end: OnEnd | None = None
    on_refused: OnRefused | None = None
    admit: Admit | None = None
    admit_items: AdmitItems | None = None
