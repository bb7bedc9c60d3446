"""Unstored data and keys are in no store of this package or the host, in no log, and in no error."""

from collections.abc import Iterator

import pytest

from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, finish, reasoning, reply, text, tool_call
from tests.support.variants import records, rows, traces, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, error_of, final

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

KEY = "sk-canary-of-the-model-server"
UNKEPT = "canary-unkept"
KEPT = "canary-kept"


@pytest.fixture(scope="module")
def quiet(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack with a key for the model server, whose host stores the chats of its own chat route."""

    def keep_chats(config: Json) -> None:
        config["storage"]["stores"]["inference"]["enabled"] = True

    folder = tmp_path_factory.mktemp("quiet")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "INFERENCE_API_KEY": KEY}
    with LiveStack(variant(STARTER, folder / "config.yaml", keep_chats), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def wire(quiet: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """A plain HTTP client of that stack."""
    with Wire(quiet) as wire:
        yield wire


def request(canary: str, model: str, store: bool) -> Json:
    """Return a request with the canary in every text field."""
    parameters = {"type": "object", "description": f"{canary}-schema", "properties": {}}
    return {
        "model": f"local/{model}",
        "store": store,
        "input": [
            {"role": "user", "content": f"{canary}-input " * 30, "id": f"msg_{canary}"},
            {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": f'{{"a": "{canary}-arguments"}}'},
            {"type": "function_call_output", "call_id": "call_0", "output": f"{canary}-output"},
        ],
        "instructions": f"{canary}-instructions " * 30,
        "metadata": {"note": f"{canary}-metadata"},
        "tools": [
            {"type": "function", "name": "f", "description": f"{canary}-tool" * 30, "parameters": parameters},
        ],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": parameters}},
        "prompt_cache_key": f"{canary}-cache",
        "user": f"{canary}-user",
    }


def script_all(upstream: Upstream, canary: str) -> None:
    """Script models that answer with the canary, one for each way to end."""
    words = [*reasoning(f"{canary}-thought"), *text(f"{canary}-said ", "and more")]
    upstream.script("whole", reply(words, tool_call(0, "call_1", "f", f'{{"b": "{canary}-called"}}')))
    upstream.script("cut", reply(words, finish("length")))
    upstream.script("broken", reply(words, end="error_frame"))
    upstream.script("refused", error(400, f"{canary}-refusal"))
    upstream.script("left", reply(words, hold=len(words)))


def ask_all(wire: Wire, canary: str, store: bool) -> None:
    """Send requests with each ending, streamed and not, and one whose client disconnects in the middle."""
    for model, status in (("whole", 200), ("cut", 200), ("broken", 502), ("refused", 400)):
        assert wire.post(request(canary, model, store)).status_code == status
        answer = wire.post(request(canary, model, store) | {"stream": True})
        assert answer.status_code == (400 if model == "refused" else 200)
    with wire.http.stream("POST", "/responses", json=request(canary, "left", store) | {"stream": True}) as left:
        pieces = left.iter_bytes()
        while b"more" not in next(pieces):
            pass


def check_upstream_received(upstream: Upstream, canary: str) -> None:
    """Check that the canaries reached the model server, so that their absence elsewhere is conclusive."""
    for model in ("whole", "cut", "broken", "refused", "left"):
        for record in upstream.wait_for(model, count=1 if model == "left" else 2, ended=True):
            assert f"{canary}-input" in str(record.body["messages"])
            assert f"{canary}-tool" in str(record.body["tools"])


def test_request_with_store_false_writes_nothing(quiet: LiveStack, wire: Wire, upstream: Upstream) -> None:
    script_all(upstream, UNKEPT)
    first = wire.create(model="local/echo", input="hello")
    before = records(quiet.state_dir / "responses.db")
    ask_all(wire, UNKEPT, store=False)
    body = request(UNKEPT, "whole", store=False)
    final(wire.stream(**{**body, "previous_response_id": first["id"]}))
    check_upstream_received(upstream, UNKEPT)
    assert records(quiet.state_dir / "responses.db") == before
    assert rows(quiet.state_dir / "host-sql.db", "chat_completions") == 0
    assert traces(quiet.state_dir, UNKEPT) == []


def test_stored_request_is_only_in_the_response_store(quiet: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """The control of the test above: with `store`, the same search finds each canary, in the response store only."""
    script_all(upstream, KEPT)
    ask_all(wire, KEPT, store=True)
    check_upstream_received(upstream, KEPT)
    wait_until(lambda: {each["status"] for each in wire.listed(model="local/left")} == {"cancelled"})
    kinds = ("input", "output", "arguments", "instructions", "metadata", "tool", "schema", "said", "thought", "called")
    for kind in kinds:
        found = traces(quiet.state_dir, f"{KEPT}-{kind}")
        assert found, kind
        assert {where.split(":")[0].removesuffix("-wal") for where in found} == {"responses.db"}, kind
    assert rows(quiet.state_dir / "host-sql.db", "chat_completions") == 0


def test_host_chat_route_still_stores_its_own_chats(quiet: LiveStack, wire: Wire) -> None:
    """One response is created between two chats, each with another model: the host keeps a row for each id of a chat."""

    def chat(model: str) -> None:
        body = {"model": f"local/{model}", "messages": [{"role": "user", "content": f"canary-{model}"}]}
        assert wire.http.post("/chat/completions", json=body).status_code == 200
        wait_until(lambda: bool(traces(quiet.state_dir, f"canary-{model}")))

    chat("echo")
    wire.create(model="local/fast-1", input="not there")
    chat("fast-2")
    assert rows(quiet.state_dir / "host-sql.db", "chat_completions") == 2


@pytest.mark.parametrize("status", [401, 403])
def test_model_server_key_is_in_no_error_and_no_file(
    quiet: LiveStack, wire: Wire, upstream: Upstream, status: int
) -> None:
    upstream.script("keyed", error(status, f"Incorrect API key provided: {KEY}. You can find your key at ..."))
    for stream in (False, True):
        answer = wire.post({"model": "local/keyed", "input": "x", "stream": stream})
        assert "credentials" in error_of(answer, 502)["message"]
        assert KEY not in answer.text
    assert upstream.requests("keyed")[0].headers["authorization"] == f"Bearer {KEY}"
    assert traces(quiet.state_dir, KEY) == []


def test_shutdown_writes_no_unstored_data(quiet: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """Pending writes are flushed at the latest by the shutdown."""
    script_all(upstream, UNKEPT)
    ask_all(wire, UNKEPT, store=False)
    kept = wire.create(model="local/echo", input=KEPT)
    quiet.stop()
    assert traces(quiet.state_dir, UNKEPT) == []
    assert traces(quiet.state_dir, KEY) == []
    assert traces(quiet.state_dir, KEPT)
    assert f"r/{kept['id']}" in records(quiet.state_dir / "responses.db")
    assert not (quiet.state_dir / "responses.db-wal").exists()  # one file to back up
