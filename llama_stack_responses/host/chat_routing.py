"""Routes a chat request through the host's inference router to its provider.

Three steps of the host take longer than all of this package's own work on a short request. Its router validates every
tool with a validator that it builds anew for each. llama-stack's providers look the model up by the provider's name for
it, which the host does not know, so the host reads its registry file each time. For a model that the host does not list
it does this too, with a new thread and connection. Therefore the tools, already validated on receipt, bypass the
router, the provider gets the host's name of a listed model, and unlisted models are cached for a few seconds
(`model_lookups.py`). Messages are JSON with the interface of models (`JsonModel`); streams are read in
`chat_streams.py`.

The router passes each chunk of a stream through a generator of its own, only to measure the time to the first text and
to read the usage. A provider that can push its chunks, like `remote::openai-chat`, passes the others directly to the
receiver. The router still runs its generator, and so sees the beginning, the usage, and how the stream ends. The
variables of its loop refer to the parts of the last chunk that it has read, two kilobytes for as long as it waits. So
that chunk is emptied when the router asks for the next one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable
from itertools import batched
from typing import Any, Final, Protocol, Self, runtime_checkable

from ..chat.inference import Extender, Receive
from ..core.types import Json
from .chat_streams import ChatStreams
from .model_lookups import ModelLookups
from .platform import ChatRequest

_TOOLS: Final = ("tools", "tool_choice")

_BLANK: Final = ChatRequest.model_construct(model="", messages=[])
"""A request without settings. A copy takes a tenth of the steps of a new one, which asks each field for its default."""
_NO_FIELDS: Final = frozenset[str]()

_MESSAGES_PER_BATCH: Final = 500
"""Messages that are converted in one iteration of the event loop."""


@runtime_checkable
class PushesChunks(Protocol):
    """A stream of chunks that can pass them on when they arrive, such as that of `remote::openai-chat`."""

    def push_to(self, receive: Receive, extender: Extender | None) -> None:
        """Pass each chunk to `receive` first; only those for which it returns False are read from the stream.

        A chunk that `extender` takes is not even built. Each chunk is an object of its own, which is emptied after use.
        """
        ...

    def __anext__(self) -> Awaitable[Any]:
        """Read the next chunk."""
        ...


class JsonModel(dict[str, Any]):
    """A JSON object whose fields are also attributes; absent ones are None.

    The host's models allow fewer kinds of messages than its model servers accept, so messages are not converted to
    them. But some of its providers, such as `remote::ollama`, access messages as models and replace image URLs by
    images; and its inference store dumps them. Nested values become a `JsonModel` on first access, as a copy, so that
    other holders of the same message are not affected by changes.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        if isinstance(value, dict) and not isinstance(value, JsonModel):
            value = self[name] = JsonModel(value)
        elif isinstance(value, list):
            value = self[name] = [JsonModel(each) if type(each) is dict else each for each in value]
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return the object itself: it is already plain JSON."""
        return self


class ChatRouting:
    """Routes chat requests through a router.

    Args:
        router: the host's implementation of its Inference API.
        lookups: remembers which models the host does not list; None to ask the host each time.
    """

    def __init__(self, router: Any, lookups: ModelLookups | None = None) -> None:
        self._router = router
        self._lookups = lookups
        self._streams = ChatStreams()

    async def route(self, request: Json, receive: Receive | None = None, extender: Extender | None = None) -> Any:
        """Return the provider's answer to a chat request: a completion, or a stream of chunks.

        Args:
            request: the chat request.
            receive: takes the chunks that the router does not need, if the provider pushes them.
            extender: takes those that only extend the text of the last one.
        """
        tools: Json = {name: request[name] for name in _TOOLS if name in request}
        if tools.get("tool_choice") == "none":
            # The router does the same: some providers call tools in spite of "none".
            tools = {}

        router = copy.copy(self._router)
        # A router that stores completions collects every chunk.
        direct_receiver = (
            _DirectReceiver(receive, extender) if receive and getattr(router, "store", None) is None else None
        )
        router.routing_table = _Table(router.routing_table, self._lookups, tools, self._streams, direct_receiver)
        fields = {name: value for name, value in request.items() if name not in _TOOLS}
        fields["messages"] = messages = list[JsonModel]()
        for some in batched(request["messages"], _MESSAGES_PER_BATCH):
            if messages:
                await asyncio.sleep(0)
            messages += map(JsonModel, some)
        return await router.openai_chat_completion(_BLANK.model_copy(update=fields))


class _Proxy:
    """A proxy for an object of the host, for one request."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Table(_Proxy):
    """A proxy for the routing table.

    The router asks it for a model, and then for the provider of this model, for which the host would look the model up
    once more.

    Args:
        inner: the host's routing table.
        lookups: as for `ChatRouting`.
        fields, streams, direct_receiver: as for `_Provider`, for all providers.
    """

    __slots__ = ("_direct_receiver", "_fields", "_found", "_lookups", "_streams")

    def __init__(
        self,
        inner: Any,
        lookups: ModelLookups | None,
        fields: Json,
        streams: ChatStreams,
        direct_receiver: _DirectReceiver | None,
    ) -> None:
        super().__init__(inner)
        self._lookups = lookups
        self._fields = fields
        self._streams = streams
        self._direct_receiver = direct_receiver
        self._found: Any = None

    async def get_object_by_identifier(self, kind: str, name: str) -> Any:
        find = self._inner.get_object_by_identifier
        self._found = await (self._lookups.find(self._inner, kind, name) if self._lookups else find(kind, name))
        return self._found

    @property
    def impls_by_provider_id(self) -> dict[str, Any]:
        return {name: self._wrap(each, {}) for name, each in self._inner.impls_by_provider_id.items()}

    async def get_provider_impl(self, model: str) -> Any:
        provider = self._provider_of_found(model) or await self._inner.get_provider_impl(model)
        looks_up_names = hasattr(provider, "_get_provider_model_id")
        return self._wrap(provider, {"model": model} if looks_up_names else {})

    def _provider_of_found(self, model: str) -> Any:
        """Return the provider of the model that was just found; None if it was another one, or has none."""
        found = self._found
        if found is None or found.identifier != model:
            return None
        return self._inner.impls_by_provider_id.get(found.provider_id)

    def _wrap(self, provider: Any, more: Json) -> _Provider:
        return _Provider(provider, self._fields | more, self._streams, self._direct_receiver)


class _Provider(_Proxy):
    """A proxy for an inference provider that adds `fields` to the request and passes chunks by the router."""

    __slots__ = ("_direct_receiver", "_fields", "_streams")

    def __init__(self, inner: Any, fields: Json, streams: ChatStreams, direct_receiver: _DirectReceiver | None) -> None:
        super().__init__(inner)
        self._fields = fields
        self._streams = streams
        self._direct_receiver = direct_receiver

    async def openai_chat_completion(self, params: Any) -> Any:
        for name, value in self._fields.items():
            setattr(params, name, value)
        answer = await self._streams.of(self._inner).openai_chat_completion(params)
        if self._direct_receiver and isinstance(answer, PushesChunks):
            answer.push_to(self._direct_receiver, self._direct_receiver.extender)
            # The request was sent. The router would hold its messages until the stream ends, to store them.
            params.messages = []
            return _MeasuredChunks(answer, self._direct_receiver)
        return answer


class _DirectReceiver:
    """Takes the chunks that the router does not need: it measures the first text, and reads the usage and the end.

    A chunk that extends the text of the last one is none of these.

    Attributes:
        extender: takes chunks that extend the text of the last one.
        left: the last chunk, if the router reads it.
    """

    __slots__ = ("_has_text", "_receive", "extender", "left")

    def __init__(self, receive: Receive, extender: Extender | None) -> None:
        self._receive = receive
        self.extender = extender
        self._has_text = False
        self.left: Any = None

    def __call__(self, chunk: Any) -> bool:
        taken = self._take(chunk)
        self.left = None if taken else chunk
        return taken

    def _take(self, chunk: Any) -> bool:
        if chunk.usage is not None or not chunk.choices:
            return False
        choice = chunk.choices[0]
        if not self._has_text and choice.delta is not None and choice.delta.content:
            self._has_text = True
            return False
        return not choice.finish_reason and self._receive(chunk)


class _MeasuredChunks:
    """The chunks that the router reads.

    Args:
        chunks: the stream of the provider.
        direct_receiver: has left them to the router.
    """

    __slots__ = ("_chunks", "_direct_receiver")

    def __init__(self, chunks: PushesChunks, direct_receiver: _DirectReceiver) -> None:
        self._chunks = chunks
        self._direct_receiver = direct_receiver

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Any]:
        chunk, self._direct_receiver.left = self._direct_receiver.left, None
        if chunk is not None:
            _empty(chunk)
        return self._chunks.__anext__()


def _empty(chunk: Any) -> None:
    """Take the values out of a chunk, its choices and their deltas; the dicts themselves may still be read."""
    for choice in chunk.choices or ():  # JSON may have null instead of a list
        if choice.delta is not None:
            _take_values(choice.delta)
        _take_values(choice)
    _take_values(chunk)


def _take_values(model: Any) -> None:
    object.__setattr__(model, "__dict__", {})
    object.__setattr__(model, "__pydantic_fields_set__", _NO_FIELDS)
    object.__setattr__(model, "__pydantic_extra__", None)
