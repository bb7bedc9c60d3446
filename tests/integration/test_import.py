"""The `import` command: conversations of the host's own service."""

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from llama_stack_responses.cli import main
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.access import Access
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import DEFAULT_LIMITS
from llama_stack_responses.inputs.history import HistoryBounds, HistoryReader
from llama_stack_responses.sealing.sealed_items import SealedItems
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.conversations import Conversations
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.stack import STARTER, Host
from tests.support.wire import Json

pytestmark = [
    pytest.mark.live,
    pytest.mark.both_hosts,
    # The hosts read a deprecated field of their own.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

ALICE: Final = ("alice", {"teams": ["search"]})
BOB: Final = ("bob", {"teams": ["ads"]})
type Name = tuple[str, dict[str, list[str]]] | None


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The starter template's configuration, with its state in a folder of the test."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    return STARTER


class HostTable:
    """The host's own conversations, written by its own service as by users' requests."""

    def __init__(self, host: Host, config: Path) -> None:
        import_module(host)
        # Imported here because these modules depend on the installed host.
        self._platform: Any = import_module("llama_stack_responses.host.platform")
        self._api: Any = import_module(f"{host}_api.conversations")
        self._config = self._platform.parse_and_maybe_upgrade_config(yaml.safe_load(config.read_text()))

    def fill(self, user: Name, metadata: dict[str, str], *batches: Sequence[Json]) -> Json:
        """Create a conversation, one request per batch of items; return it with the `items` that the host lists."""

        async def fill(service: Any) -> Json:
            creation = self._api.CreateConversationRequest(items=batches[0], metadata=metadata)
            conversation: Json = (await service.create_conversation(creation)).model_dump()
            for items in batches[1:]:
                await service.add_items(conversation["id"], self._api.AddItemsRequest(items=items))
            request = self._api.ListItemsRequest(conversation_id=conversation["id"], order="asc", limit=100)
            items = [item.model_dump(exclude_none=True) for item in (await service.list_items(request)).data]
            return {**conversation, "items": items}

        return asyncio.run(self._as_user(user, fill))

    def damage(self, item_id: str) -> None:
        """Write an invalid item into the item's row."""

        async def damage(service: Any) -> Json:
            data = {"item_data": {"type": "from_the_future", "id": item_id}}
            await service.sql_store.sql_store.update("conversation_items", data, where={"id": item_id})
            return {}

        asyncio.run(self._as_user(None, damage))

    async def _as_user(self, user: Name, do: Callable[[Any], Any]) -> Json:
        self._platform.initialize_storage(self._config)
        asked = self._platform.ConversationServiceConfig(config=self._config)
        service = self._platform.ConversationServiceImpl(asked, {})
        await service.initialize()
        caller = self._platform.User(*user) if user else None
        try:
            with self._platform.RequestProviderDataContext({}, caller):
                done: Json = await do(service)
                return done
        finally:
            await service.sql_store.sql_store.shutdown()


def message(number: int, **fields: Any) -> Json:
    content = [{"type": "input_text", "text": f"said {number}"}]
    return {"type": "message", "role": "user", "content": content, **fields}


def read(folder: Path, user: Name, conversation_id: str) -> tuple[Json, list[Json]]:
    """Return a conversation and its items, oldest first, as this package's API shows them to the user."""
    platform: Any = import_module("llama_stack_responses.host.platform")
    access: Access = import_module("llama_stack_responses.host.identity").HostAccess([])

    async def ask() -> tuple[Json, list[Json]]:
        records = SqliteRecords(folder / "responses.db")
        archive = Archive(records)
        ours = Conversations(
            archive,
            HistoryReader(archive, access, HistoryBounds(2**20, 2**20, 2**20)),
            access,
            SealedItems(Sealer([]), 2**20),
            DEFAULT_LIMITS,
            LargeWork(),
        )
        try:
            with platform.RequestProviderDataContext({}, platform.User(*user) if user else None):
                shown = await ours.retrieve(conversation_id)
                page = await ours.list_items(conversation_id, limit=100, after=None, order="asc")
                return shown, page.data
        finally:
            await records.close()

    return asyncio.run(ask())


def texts(items: Sequence[Json]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


def test_import_keeps_owner_and_order_of_conversations_and_skips_imported_ones(
    host: Host, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = HostTable(host, config)
    # The order of these ids, where the host keeps them, differs from the order of the items.
    messages = [message(number, id=f"msg_{97 - 7 * number}") for number in range(12)]
    hers = table.fill(ALICE, {"topic": "keys"}, messages[:4], messages[4:])
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    his = table.fill(BOB, {}, [message(0), call, output])
    without_user = table.fill(None, {}, [message(5)])
    lost, *kept = his["items"]
    table.damage(lost["id"])
    capsys.readouterr()

    assert main(["import", str(config)]) == 0
    assert capsys.readouterr().out == (
        "Imported 3 conversations with 15 items and 0 responses; 0 already existed or were deleted; "
        "0 are older than 'retention_days'; 0 had not ended; 1 could not be read and were left out: "
        f"{lost['id']}.\n"
    )
    shown, items = read(tmp_path, ALICE, hers["id"])
    assert shown == {each: hers[each] for each in ("id", "object", "created_at")} | {"metadata": {"topic": "keys"}}
    assert texts(items) == [f"said {number}" for number in range(12)]
    assert [item["id"] for item in items] == [item["id"] for item in hers["items"]]
    assert read(tmp_path, BOB, his["id"])[1] == [{"status": "completed", **item} for item in kept]
    assert texts(read(tmp_path, None, without_user["id"])[1]) == ["said 5"]
    with pytest.raises(ApiError) as refused:
        read(tmp_path, BOB, hers["id"])
    assert refused.value.status == 404

    later = table.fill(ALICE, {}, [message(1)])
    assert main(["import", str(config)]) == 0
    assert (
        "Imported 1 conversation with 1 item and 0 responses; 3 already existed or were deleted"
        in capsys.readouterr().out
    )
    assert texts(read(tmp_path, ALICE, later["id"])[1]) == ["said 1"]
    assert len(read(tmp_path, ALICE, hers["id"])[1]) == 12


def without_provider(config: Json) -> None:
    del config["providers"]["responses"]


def in_memory(config: Json) -> None:
    config["providers"]["responses"][0]["config"]["store"] = {"type": "memory"}


def store_away(config: Json) -> None:
    # There is a folder at the path of the file.
    config["providers"]["responses"][0]["config"]["store"]["path"] = "${env.STATE_DIR}"


def host_table_unreadable(config: Json) -> None:
    # The file is the configuration, and not a database.
    config["storage"]["backends"]["sql_default"]["db_path"] = "${env.STATE_DIR}/other.yaml"


def host_table_missing(config: Json) -> None:
    """As with another STATE_DIR than that of the server."""
    config["storage"]["backends"]["sql_default"]["db_path"] = "${env.STATE_DIR}/elsewhere/host-sql.db"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_provider, "has no provider 'inline::kv'"),
        (in_memory, "names the store 'memory'"),
        (store_away, "The response store"),
        (
            host_table_unreadable,
            "check 'storage' in the configuration, and the variables that it uses, such as STATE_DIR.",
        ),
        (host_table_missing, "There is no database "),
        (None, "Cannot read"),
    ],
)
def test_import_failure_is_reported_in_one_sentence(
    host: Host,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Json], None] | None,
    says: str,
) -> None:
    target = tmp_path / "other.yaml"
    if change:
        changed = yaml.safe_load(config.read_text())
        change(changed)
        target.write_text(yaml.safe_dump(changed))
        HostTable(host, config).fill(None, {}, [message(1)])
    capsys.readouterr()
    assert main(["import", str(target)]) == 2
    [output] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("llama-stack-responses: ")]
    assert says in output
