"""The host's vector stores: whether the stack has any, and the embedding model of new ones."""

from types import SimpleNamespace
from typing import Any

import pytest
from llama_stack_api.vector_io.models import OpenAICreateVectorStoreRequestWithExtraBody as Creation

from llama_stack_responses.host import vector_stores_of
from llama_stack_responses.host.vector_stores import HostVectorStores, take_default_embedding_model


def test_stack_without_provider_of_vector_stores_has_none() -> None:
    assert vector_stores_of(None) is None
    assert vector_stores_of(SimpleNamespace(routing_table=SimpleNamespace(impls_by_provider_id={}))) is None
    found = vector_stores_of(SimpleNamespace(routing_table=SimpleNamespace(impls_by_provider_id={"faiss": object()})))
    assert isinstance(found, HostVectorStores)


class Router:
    """The host's router, and the embedding models that it was asked to use."""

    def __init__(self, *names: str, configured: object = None) -> None:
        known = {"embedding_dimension": 384}
        self._models = [
            SimpleNamespace(identifier="local/chat", model_type="llm", metadata={}),
            SimpleNamespace(identifier="local/of-unknown-length", model_type="embedding", metadata={}),
            *(SimpleNamespace(identifier=name, model_type="embedding", metadata=known) for name in names),
        ]
        self.routing_table = self
        self.vector_stores_config = SimpleNamespace(default_embedding_model=configured)
        self.used: list[Any] = []

    async def get_all_with_type(self, kind: str) -> list[Any]:
        """Return the models."""
        assert kind == "model"
        return self._models

    async def openai_create_vector_store(self, params: Creation) -> str:
        """Note the embedding model."""
        self.used.append((params.model_extra or {}).get("embedding_model"))
        return "created"


async def created(router: Router, **named: Any) -> Any:
    take_default_embedding_model(router)
    request = Creation(name="animals", **named)
    assert await router.openai_create_vector_store(request) == "created"
    [used] = router.used
    return used


async def test_new_vector_store_takes_the_only_embedding_model() -> None:
    assert await created(Router("local/a")) == "local/a"
    assert await created(Router("local/a"), embedding_model=None) == "local/a"


async def test_new_vector_store_keeps_the_embedding_model_that_is_named_or_configured() -> None:
    assert await created(Router("local/a"), embedding_model="local/b") == "local/b"
    assert await created(Router("local/a"), metadata={"embedding_model": "local/b"}) is None
    assert await created(Router("local/a", configured=object())) is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "no embedding model .* variable EMBEDDING_MODELS, by its name in /v1/models"),
        (("b/x", "a/y"), "several embedding models: .* as 'embedding_model' in the request, such as a/y, b/x"),
    ],
)
async def test_new_vector_store_without_a_clear_embedding_model_is_refused(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await created(Router(*names))
