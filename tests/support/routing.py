"""Fakes around the host's inference router: a routing table, and the provider that it leads to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from llama_stack_api import Model, ModelType

from tests.support.inference import finish, text


class Provider:
    """An inference provider named `local`, which records its requests and answers `Hello`."""

    __provider_id__ = "local"

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def openai_chat_completion(self, params: Any) -> AsyncGenerator[Any]:
        self.requests.append(params)
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[Any]:
        yield text("Hello")
        yield finish()


class Table:
    """The routing table of one provider and its models."""

    policy: tuple[()] = ()

    def __init__(self, provider: Provider, *listed: str) -> None:
        self.impls_by_provider_id = {"local": provider}
        self._listed = {
            f"local/{name}": Model(
                identifier=f"local/{name}", provider_resource_id=name, provider_id="local", model_type=ModelType.llm
            )
            for name in listed
        }

    async def get_object_by_identifier(self, kind: str, name: str) -> Model | None:
        assert kind == "model"
        return self._listed.get(name)

    async def get_provider_impl(self, name: str) -> Provider:
        return self.impls_by_provider_id[self._listed[name].provider_id]
