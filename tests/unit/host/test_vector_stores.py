"""The host's vector stores: whether the stack has any."""

from types import SimpleNamespace

from llama_stack_responses.host import vector_stores_of
from llama_stack_responses.host.vector_stores import HostVectorStores


def test_stack_without_provider_of_vector_stores_has_none() -> None:
    assert vector_stores_of(None) is None
    assert vector_stores_of(SimpleNamespace(routing_table=SimpleNamespace(impls_by_provider_id={}))) is None
    found = vector_stores_of(SimpleNamespace(routing_table=SimpleNamespace(impls_by_provider_id={"faiss": object()})))
    assert isinstance(found, HostVectorStores)
