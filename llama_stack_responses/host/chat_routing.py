"""How a chat request goes through the host's inference router to its provider.

Two things that the host does on the way take longer than all of this package's own work on a short request. Its router
checks every tool with a validator that it builds anew for each. And llama-stack's providers look for the model by their
own name for it, by which the host has none, so that it opens its registry's file to see. So only the provider is shown
the tools, which were checked when they came, and it is given the host's name of a model that is listed.
Messages are JSON that both can look into as into models (`json_model.py`); streams are read in `chat_streams.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from .chat_streams import ChatStreams
from .json_model import JsonModel
from .platform import ChatRequest

Json = dict[str, Any]

_TOOLS: Final = ("tools", "tool_choice")


class ChatRouting:
    """The way of chat requests through a router.

    Args:
        router: the host's implementation of its Inference API.
    """

    def __init__(self, router: Any) -> None:
        self._router = router
        self._streams = ChatStreams()

    async def route(self, request: Json) -> Any:
        """The provider's answer to a chat request: its completion, or a stream of chunks."""
        tools: Json = {name: request[name] for name in _TOOLS if name in request}
        if tools.get("tool_choice") == "none":
            # As the router would: some providers make calls even so.
            tools = {}

        def shown(provider: Any, more: Json) -> _Provider:
            return _Provider(provider, tools | more, self._streams)

        router = copy.copy(self._router)
        router.routing_table = _Table(router.routing_table, shown)
        fields = {name: value for name, value in request.items() if name not in _TOOLS}
        fields["messages"] = [JsonModel(message) for message in request["messages"]]
        params = ChatRequest.model_construct(**fields)
        return await router.openai_chat_completion(params)


class _Seen:
    """Something of the host's, as one request sees it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Table(_Seen):
    """The routing table.

    Args:
        inner: the host's.
        shown: what the request sees of a provider that is to know more of it than the router.
    """

    def __init__(self, inner: Any, shown: Callable[[Any, Json], Any]) -> None:
        super().__init__(inner)
        self._shown = shown

    @property
    def impls_by_provider_id(self) -> dict[str, Any]:
        return {name: self._shown(each, {}) for name, each in self._inner.impls_by_provider_id.items()}

    async def get_provider_impl(self, model: str) -> Any:
        provider = await self._inner.get_provider_impl(model)
        looks = hasattr(provider, "_get_provider_model_id")
        return self._shown(provider, {"model": model} if looks else {})


class _Provider(_Seen):
    """An inference provider, which finds `fields` in its request."""

    def __init__(self, inner: Any, fields: Json, streams: ChatStreams) -> None:
        super().__init__(inner)
        self._fields = fields
        self._streams = streams

    async def openai_chat_completion(self, params: Any) -> Any:
        for name, value in self._fields.items():
            setattr(params, name, value)
        return await self._streams.of(self._inner).openai_chat_completion(params)
