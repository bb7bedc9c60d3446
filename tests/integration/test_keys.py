"""Keys of the server's own: the guide's commands and configuration, on a live stack, and attacks on it."""

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from websockets.exceptions import InvalidStatus

from llama_stack_responses.cli import main
from tests.support.documented import put_in
from tests.support.reader import Reader
from tests.support.snippets import blocks
from tests.support.socket_client import SocketClient
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, error_of, output_text

pytestmark = [
    pytest.mark.live,
    pytest.mark.both_hosts,
    # The hosts read a deprecated field of their own.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

GUIDE: Final = "docs/guides/keys.md, Turn them on"
MODEL: Final = "local/echo"


class KeyedStack:
    """A stack whose users have keys, and the commands on its store."""

    def __init__(self, live: LiveStack, config: Path, env: dict[str, str]) -> None:
        self.live = live
        self._config = config
        self._env = env | {"STATE_DIR": str(live.state_dir)}
        self.tokens: list[str] = []

    def run(self, *arguments: str) -> str:
        """Run a command, and return what it prints to standard output."""
        out, errors = StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
            for variable, value in self._env.items():
                patch.setenv(variable, value)
            assert main([*arguments, "--config", str(self._config)]) == 0, errors.getvalue()
        return out.getvalue()

    def create(self, owner: str, *options: str) -> tuple[str, str]:
        """Create a key; return its id and its token."""
        made = json.loads(self.run("keys", "create", "--owner", owner, *options, "--json"))
        self.tokens.append(made["value"])
        return made["id"], made["value"]


@pytest.fixture(scope="module")
def keyed(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KeyedStack]:
    """A stack of the starter template with what the guide adds."""

    def change(config: Json) -> None:
        put_in(config, blocks()[f"{GUIDE}, yaml"].text)
        put_in(config, blocks()["docs/guides/keys.md, Operators and leads of teams, yaml"].text)
        responses_config(config)["auth_cache_seconds"] = 1
        responses_config(config)["model_servers"] = {"local": {"concurrency": 2, "concurrency_per_user": 2}}

    folder = tmp_path_factory.mktemp("keyed")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    config = variant(STARTER, folder / "config.yaml", change)
    with LiveStack(config, env, folder / "state", host=host) as live:
        yield KeyedStack(live, config, env)


@pytest.fixture
def clients(keyed: KeyedStack, upstream: Upstream) -> Iterator[dict[str, Wire]]:
    """A client of each of two users."""
    with ExitStack() as opened:
        yield {name: opened.enter_context(Wire(keyed.live, keyed.create(name)[1])) for name in ("ada", "bob")}


def test_commands_of_the_guide_work_in_their_order(keyed: KeyedStack, upstream: Upstream) -> None:
    printed: list[str] = []
    key_id = ""
    for line in blocks()[f"{GUIDE}, console"].text.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        assert words.pop(0) == "llama-stack-responses"
        if ">" in words:
            words = words[: words.index(">")]
        printed.append(keyed.run(*[key_id if word == "KEY_ID" else word for word in words]))
        if words[1] == "list":
            key_id = next(row.split()[0] for row in printed[-1].splitlines() if "Ada's laptop" in row)
    ada, grace, rows, rotated, revoked = (each.strip() for each in printed)
    keyed.tokens += [ada, grace, rotated]
    assert "search" in rows
    assert key_id in revoked
    with Wire(keyed.live, grace) as wire:
        assert wire.create(model=MODEL, input="x")["status"] == "completed"
    for token in (ada, rotated):
        with Wire(keyed.live, token) as wire:
            assert wire.get("").status_code == 401


def test_users_of_two_keys_are_apart_and_two_keys_of_a_user_are_one(
    keyed: KeyedStack, clients: dict[str, Wire]
) -> None:
    response = clients["ada"].create(model=MODEL, input="mine")
    assert error_of(clients["bob"].get(f"/{response['id']}"), 404)
    with Wire(keyed.live, keyed.create("ada")[1]) as second:
        assert second.retrieve(response["id"]) == response


def test_openai_client_says_that_a_key_is_wrong(keyed: KeyedStack) -> None:
    key_id, token = keyed.create("ada")
    unknown = token.replace(key_id.removeprefix("key_"), "0" * 24)
    messages = set()
    for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), unknown, "wrong"):
        with keyed.live.client(api_key=wrong) as client, pytest.raises(openai.AuthenticationError) as refused:
            client.responses.create(model=MODEL, input="x")
        messages.add(str(refused.value))
    assert len(messages) == 1


def test_key_is_used_within_its_limits(keyed: KeyedStack, upstream: Upstream) -> None:
    """The stack does not count usage."""
    upstream.script(
        "limited", reply(text("ok"), usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
    )
    body = {"model": "local/limited", "input": "x"}
    with Wire(keyed.live, keyed.create("ada", "--limit", "tokens_per_day=10")[1]) as wire:
        assert wire.create(**body)["status"] == "completed"
        for more in ({}, {"background": True}, {"stream": True}):
            assert error_of(wire.post(body | more), 429)["code"] == "insufficient_quota"
    with Wire(keyed.live, keyed.create("ada")[1]) as wire:
        assert wire.create(**body)["status"] == "completed"


def test_key_uses_and_lists_its_models_only(keyed: KeyedStack, upstream: Upstream) -> None:
    _, token = keyed.create("ada", "--model", "local/ec*")
    for stream in (False, True):
        upstream.script("other", reply(text("ok")))
        with Wire(keyed.live, token) as wire:
            assert output_text(wire.create(model=MODEL, input="x"))
            for more in ({}, {"background": True}, {"stream": True}):
                refused = error_of(wire.post({"model": "local/other", "input": "x", **more}), 404)
                assert (refused["code"], refused["param"]) == ("model_not_found", "model")
            chat = {"model": "local/other", "messages": [{"role": "user", "content": "x"}], "stream": stream}
            assert wire.http.post("/chat/completions", json=chat).status_code in (400, 404)
            listed = [each["id"] for each in wire.http.get("/models").json()["data"]]
            assert listed == [each for each in listed if each.startswith("local/ec")]
    with WebSocketClient(keyed.live, token) as websocket:
        websocket.ask(model="local/other", input="x")
        assert websocket.error()["code"] == "model_not_found"
    assert upstream.requests("other") == []


def test_revoked_key_ends_with_the_next_request_and_what_runs_goes_on(keyed: KeyedStack, upstream: Upstream) -> None:
    """In a stream over HTTP, and on a WebSocket."""
    upstream.script("held", [reply(text("one ", "two"), hold=1)] * 2)
    key_id, token = keyed.create("carol")
    with Wire(keyed.live, token) as wire, WebSocketClient(keyed.live, token) as websocket:
        with Reader.create(wire, model="local/held", input="x") as reader:
            reader.read_to("one ")
            websocket.ask(model="local/held", input="x")
            upstream.wait_for("held", 2, chunks=1)
            keyed.run("keys", "revoke", key_id)
            wait_until(lambda: wire.get("").status_code == 401)
            upstream.release("held")
            assert output_text(check_stream(reader.read_to_end())) == "one two"
        assert output_text(websocket.response()) == "one two"
        websocket.ask(model=MODEL, input="x")
        assert websocket.error()["status"] == 401
    with pytest.raises(InvalidStatus) as refused:
        WebSocketClient(keyed.live, token)
    assert refused.value.response.status_code in (401, 403)


def test_rotated_key_goes_on_with_both_tokens_and_is_the_same_user(keyed: KeyedStack) -> None:
    key_id, old = keyed.create("dan")
    with Wire(keyed.live, old) as before:
        response = before.create(model=MODEL, input="x")
        new = keyed.run("keys", "rotate", key_id).strip()
        keyed.tokens.append(new)
        with Wire(keyed.live, new) as after:
            assert after.retrieve(response["id"]) == response
        assert before.retrieve(response["id"]) == response
    [shown] = [each for each in listed(keyed) if each["id"] == key_id]
    assert shown["last_used_at"] is not None
    assert shown["older_token_expires_at"] is not None


def listed(keyed: KeyedStack) -> list[Any]:
    """Return all keys."""
    return [json.loads(line) for line in keyed.run("keys", "list", "--json").splitlines()]


def test_operator_acts_for_a_user_by_a_key_with_the_role(
    keyed: KeyedStack, clients: dict[str, Wire], upstream: Upstream
) -> None:
    """Also for a background response that runs, which its owner sees cancelled."""
    upstream.script("held", reply(text("one ", "two"), hold=1))
    ada, path = clients["ada"], "/admin/responses"
    running = ada.create(model="local/held", input="x", background=True)["id"]
    upstream.wait_for("held", chunks=1)
    with Wire(keyed.live, keyed.create("olga", "--role", "operator")[1]) as olga:
        assert ada.http.get(path).status_code == 403
        assert olga.http.get(f"{path}/{running}").json()["owner"]["principal"] == "ada"
        assert running in [each["id"] for each in olga.http.get(path, params={"owner": "ada"}).json()["data"]]
        assert olga.http.post(f"{path}/{running}/cancel").json()["status"] in ("in_progress", "cancelled")
        wait_until(lambda: ada.retrieve(running)["status"] == "cancelled")
        created = olga.http.post("/admin/keys", json={"name": "new", "owner": "ada"}).json()
        keyed.tokens.append(created["value"])
        with Wire(keyed.live, created["value"]) as second:
            assert second.retrieve(running)["id"] == running
        assert olga.http.delete(f"{path}/{running}").status_code == 200
        assert ada.get(f"/{running}").status_code == 404
        acts = olga.http.get("/admin/audit", params={"resource_id": running}).json()["data"]
    assert [each["type"] for each in acts] == ["response.deleted", "response.cancelled", "response.read"]
    assert {each["actor"]["session"]["ip_address"] for each in acts} == {"127.0.0.1"}
    assert "response.deleted" in keyed.run("audit", "--owner", "ada")


def test_tokens_are_in_no_file_of_the_server(keyed: KeyedStack, clients: dict[str, Wire]) -> None:
    """Neither in its log nor in a store."""
    clients["ada"].create(model=MODEL, input="x", background=True)
    assert keyed.tokens
    for token in keyed.tokens:
        assert traces(keyed.live.state_dir, token[:-4]) == []


def test_user_with_one_request_is_next_at_a_full_model_server(keyed: KeyedStack, upstream: Upstream) -> None:
    """The model server has two places, one user has twenty requests waiting, and then another user sends one."""
    for model in ("first", "second"):
        upstream.script(model, reply(text("x"), hold=True))
    for model in ("many", "one"):
        upstream.script(model, reply(text("x")))
    (_, many), (_, one) = keyed.create("many"), keyed.create("one")
    with ExitStack() as opened:
        running = [opened.enter_context(_stream(keyed.live, many, f"local/{name}")) for name in ("first", "second")]
        upstream.wait_for("first")
        upstream.wait_for("second")
        waiting = [opened.enter_context(_stream(keyed.live, many, "local/many")) for _ in range(20)]
        waiting.append(opened.enter_context(_stream(keyed.live, one, "local/one")))
        for stream in waiting:
            stream.read_until(b"response.created")
        assert not upstream.requests("many")
        upstream.release("first")
        for stream in (*running[:1], *waiting):
            stream.read_until(b"response.completed")
        served = [each.body["model"] for each in sorted(upstream.requests(), key=lambda each: each.started_at)]
        assert "one" in served[2:4], served
        upstream.release("second")
        running[1].read_until(b"response.completed")


def _stream(live: LiveStack, token: str, model: str) -> SocketClient:
    """Send a request for a stream."""
    body: Json = {"model": model, "input": "x", "stream": True}
    return SocketClient(live, body, headers={"authorization": f"Bearer {token}"})
