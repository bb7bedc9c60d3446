"""What a command says if something that it needs does not answer."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_stack_responses.commands.command_error import CommandError
from llama_stack_responses.commands.opened_store import with_store
from llama_stack_responses.config.stores import ClusterStore
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.cold.objects import ObjectsAway
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import NO_PRIMARY, UNREACHABLE, Unanswered
from tests.support.records import settled


@pytest.mark.parametrize(
    ("error", "is_store"),
    [
        (ApiError(503, UNREACHABLE, retry_after=1), True),
        (Unanswered(UNREACHABLE, settled(applied=False)), True),
        (ApiError(503, NO_PRIMARY, retry_after=1), True),
        (ApiError(503, "The response store is busy: all its connections are in use."), False),
        (ObjectsAway(), False),
    ],
)
def test_nodes_are_to_be_checked_only_if_they_are_away(error: ApiError, is_store: bool, tmp_path: Path) -> None:
    async def work(*_: object) -> None:
        raise error

    def open_store(*_: object, **__: object) -> object:
        return MemoryRecords(), SimpleNamespace(store=ClusterStore(type="cluster", url="redis://127.0.0.1:1"))

    config = tmp_path / "config.yaml"
    config.touch()
    with pytest.raises(CommandError) as failure:
        with_store(Namespace(config=config, open_store=open_store), work)
    check = " Check that its nodes run, and REDIS_URL, or the url in 'store'."
    assert str(failure.value) == f"{error.message}{check * is_store}"
