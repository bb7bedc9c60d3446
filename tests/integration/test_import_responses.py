"""The `import` command on a running stack: responses that the host's builtin provider stored."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks.servers import use_builtin
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.forks import Forks
from tests.support.openai_client import function
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import variant
from tests.support.wire import Json, Wire, error_of, output_text

pytestmark = [
    pytest.mark.live,
    pytest.mark.both_hosts,
    pytest.mark.extended,
    pytest.mark.day(1),
    # The hosts read a deprecated field of their own.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

NAME: Final = "imported"
MODEL: Final = f"local/{NAME}"
TOOLS: Final = [function("weather", "city")]
HINT: Final = "'llama-stack-responses import CONFIG' brings the responses and conversations that it stored."


class MigratedStack:
    """A stack that served with the builtin provider before, and now runs with this package on the same folder.

    Attributes:
        chain: three chained responses, including a call.
        other: a separate response, in a conversation.
        hers: the id of a response that belongs to a user.
    """

    def __init__(self, stack: LiveStack, env: dict[str, str], commands: Forks) -> None:
        self.stack = stack
        self.chain: list[Json] = []
        self.other: Json = {}
        self.conversation: Json = {}
        self.hers = ""
        self._env = env
        self._commands = commands

    def run_import(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command while the stack runs."""
        return self._commands.run("import", *arguments, folder=self.stack.state_dir, env=self._env)


def serve_builtin(moved: MigratedStack, builtin: LiveStack, upstream: Upstream) -> None:
    """Create the responses and the conversation in the host's own tables."""
    call = tool_call(0, "call_a", "weather", '{"city":', ' "Oslo"}')
    upstream.script(NAME, [reply(text("Hello, Ada.")), reply(call), reply(text("Sunny.")), reply(text("Noted."))])
    with builtin, Wire(builtin) as wire:

        def create(**fields: Any) -> Json:
            answer = wire.post({"model": MODEL, **fields})
            assert answer.status_code == 200, answer.text
            created: Json = answer.json()
            return created

        first = create(input="I am Ada.", instructions="Be brief.", metadata={"topic": "names"})
        second = create(input="Weather?", tools=TOOLS, previous_response_id=first["id"])
        output = {"type": "function_call_output", "call_id": "call_a", "output": "no clouds"}
        third = create(input=[output], tools=TOOLS, previous_response_id=second["id"])
        moved.chain = [first, second, third]
        moved.conversation = wire.http.post("/conversations", json={}).json()
        moved.other = create(input="Keep this.", conversation=moved.conversation["id"])


def add_row_of_a_user(host: Host, config: Path, like: str) -> str:
    """Write a user's copy of a response, with a web search, by the host's own store; return its id."""
    import_module(host)
    platform: Any = import_module("llama_stack_responses.host.platform")
    stack = platform.parse_and_maybe_upgrade_config(yaml.safe_load(config.read_text()))
    mine = f"{like[:-12]}{'a' * 12}"

    async def write() -> None:
        platform.initialize_storage(stack)
        reference = platform.ResponsesStoreReference(table_name="responses", backend="sql_default")
        store = platform.ResponsesStore(reference, [])
        await store.initialize()
        tables = store.sql_store.sql_store
        row = await tables.fetch_one("responses", where={"id": like})
        copy = {key: row[key] for key in ("created_at", "model")}
        with platform.RequestProviderDataContext({}, platform.User("alice", {"teams": ["search"]})):
            searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
            output = [searched, *row["response_object"]["output"]]
            body = {**row["response_object"], "id": mine, "output": output}
            await store.sql_store.insert("responses", {**copy, "id": mine, "response_object": body})
            damaged = {**copy, "id": f"{like[:-12]}{'b' * 12}", "response_object": {"status": "completed"}}
            await store.sql_store.insert("responses", damaged)
        await tables.shutdown()

    asyncio.run(write())
    return mine


@pytest.fixture
def moved(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MigratedStack]:
    env = {**stack_env, "INFERENCE_URL": upstream.base_url}
    state = tmp_path / "state"
    stack = LiveStack(STARTER, env, state, host=host)
    monkeypatch.setenv("STATE_DIR", str(state))
    monkeypatch.setenv("PYTHONPATH", stack_env["PYTHONPATH"])
    with Forks.of_commands(host, os.environ, tmp_path / "commands.log") as commands:
        found = MigratedStack(stack, dict(os.environ), commands)
        config = variant(STARTER, tmp_path / "builtin.yaml", use_builtin)
        serve_builtin(found, LiveStack(config, env, state, host=host), upstream)
        found.hers = add_row_of_a_user(host, STARTER, found.other["id"])
        with stack:
            yield found


def check_unknown(wire: Wire, moved: MigratedStack) -> None:
    """Check that before the import, the errors name the command."""
    last = moved.chain[-1]["id"]
    assert HINT in error_of(wire.get(f"/{last}"), 404)["message"]
    refused = error_of(wire.post({"model": MODEL, "input": "Go on", "previous_response_id": last}), 400)
    assert (refused["code"], HINT in refused["message"]) == ("previous_response_not_found", True)
    assert HINT in error_of(wire.http.get(f"/conversations/{moved.conversation['id']}"), 404)["message"]


def same(ours: Json, theirs: Json) -> None:
    """Check that a response has the same content as the builtin provider's."""
    for field in ("id", "created_at", "status", "model", "instructions", "previous_response_id"):
        assert ours[field] == theirs[field]
    assert ours["metadata"] == (theirs["metadata"] or {})
    assert [item["type"] for item in ours["output"]] == [item["type"] for item in theirs["output"]]
    assert [item["id"] for item in ours["output"]] == [item["id"] for item in theirs["output"]]
    assert output_text(ours) == output_text(theirs)
    assert ours["usage"]["total_tokens"] == theirs["usage"]["total_tokens"]


def owner_of(store: Path, response_id: str) -> Owner | None:
    """Return the owner of a response in the store."""

    async def look() -> Owner | None:
        records = SqliteRecords(store)
        try:
            entry = await Archive(records).entry(response_id)
            return entry.owner if entry else None
        finally:
            await records.close()

    return asyncio.run(look())


def test_import_on_running_stack_makes_builtin_responses_available_once(
    moved: MigratedStack, upstream: Upstream
) -> None:
    first, second, third = moved.chain
    with Wire(moved.stack) as wire:
        check_unknown(wire, moved)
        done = moved.run_import(str(STARTER))
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "Imported 1 conversation with 2 items and 5 responses; 0 already existed or were deleted; "
            "0 are older than 'retention_days'; 0 had not ended; 1 could not be read and were left out: "
            f"{moved.hers[:-12]}{'b' * 12}.\n"
        )
        for theirs in (first, second, third, moved.other):
            same(wire.retrieve(theirs["id"]), theirs)
        assert wire.retrieve(second["id"])["tools"][0]["name"] == "weather"
        listed = wire.listed()
        assert {each["id"] for each in listed} == {each["id"] for each in (*moved.chain, moved.other)}
        assert [item["type"] for item in wire.retrieve(moved.hers)["output"]] == ["web_search_call", "message"]
        assert owner_of(moved.stack.state_dir / "responses.db", moved.hers) == Owner("alice", {"teams": ["search"]})

        assert [each["type"] for each in wire.replay(third["id"])][-1] == "response.completed"
        items = wire.get(f"/{third['id']}/input_items", order="asc").json()["data"]
        assert [item["type"] for item in items] == [
            "message", "message", "message", "function_call", "function_call_output"
        ]  # fmt: skip
        upstream.script(NAME, reply(text("You are Ada.")))
        fourth = wire.create(model=MODEL, input="Who am I?", previous_response_id=third["id"])
        assert output_text(fourth) == "You are Ada."
        sent = upstream.requests(NAME)[-1].body["messages"]
        assert [(message["role"], message.get("content")) for message in sent] == [
            ("user", "I am Ada."),
            ("assistant", "Hello, Ada."),
            ("user", "Weather?"),
            ("assistant", None),
            ("tool", "no clouds"),
            ("assistant", "Sunny."),
            ("user", "Who am I?"),
        ]

        assert wire.http.delete(f"/responses/{first['id']}").status_code == 200
        done = moved.run_import(str(STARTER))
        assert done.stdout.startswith(
            "Imported 0 conversations with 0 items and 0 responses; 6 already existed or were deleted;"
        )
        error_of(wire.get(f"/{first['id']}"), 404)
        assert output_text(wire.create(model=MODEL, input="And?", previous_response_id=fourth["id"])) == "You are Ada."
