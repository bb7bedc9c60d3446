"""Isolation of users: the host's auth is on, and a small server of the test maps tokens to users."""

import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus

from llama_stack_responses.cli import main
from tests.support.auth import auth_server
from tests.support.prompts import PromptsClient
from tests.support.reader import Reader
from tests.support.skills import archive, skill
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.user_stack import PROVIDER_DATA, own_key
from tests.support.variants import add_containers, records, responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, error_of, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

UNKNOWN = "resp_000000000000000000000000"
UNKNOWN_CONVERSATION = "conv_000000000000000000000000"
SECRETS = [b64encode(os.urandom(32)).decode() for _ in range(2)]
# A team shares its records, read-only for carol. The rest is the hosts' default.
POLICY: list[Json] = [
    *(
        {
            "forbid": {"principal": "carol", "actions": ["update", "delete"], "resource": f"sql_record::{table}::*"},
            "when": "user is not owner",
        }
        for table in ("responses", "openai_conversations")
    ),
    *(
        {"permit": {"actions": ["create", "read", "update", "delete"]}, "when": condition}
        for condition in ("user in owners teams", "user is owner", "resource is unowned")
    ),
]
# Former users may use none of these routes.
ROUTES: list[Json] = [
    {"forbid": {"paths": "/v1/responses*"}, "when": "user with former in teams"},
    {"permit": {"paths": "*"}},
]
# The auth server's answer by token. Only OGX has tenants; there, `ada` of another tenant is another user.
USERS: dict[str, Json] = {
    "token-of-ada": {"principal": "ada", "attributes": {"teams": ["search"]}, "tenant": "north"},
    "token-of-bob": {"principal": "bob", "attributes": {"teams": ["sales"]}, "tenant": "north"},
    "token-of-carol": {"principal": "carol", "attributes": {"teams": ["search"]}, "tenant": "north"},
    "token-of-dan": {"principal": "dan", "attributes": {"teams": ["former"]}, "tenant": "north"},
    "token-of-erin": {"principal": "erin", "attributes": {"teams": ["sales"]}, "tenant": "north"},
    "token-of-ada-in-the-south": {"principal": "ada", "attributes": {"teams": ["search"]}, "tenant": "south"},
}


ASKED: list[Json] = []
"""The questions of the servers to the auth server."""
KEPT_SECONDS: Final = 1
"""Time for which a server does not ask again."""


@pytest.fixture(scope="module")
def auth_endpoint() -> Iterator[str]:
    """The URL of the auth server."""
    with auth_server(USERS, ASKED) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    auth_endpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack of the starter template with auth."""

    def guard(config: Json) -> None:
        provider: Json = {"type": "custom", "endpoint": auth_endpoint}
        if host == "ogx":
            provider["tenant_field"] = "tenant"
            config["server"]["tenancy"] = {"mode": "multi"}
        queue = {"concurrency": 2, "waiting": 3, "per_user": 3}
        responses_config(config).update(secrets=SECRETS, auth_cache_seconds=KEPT_SECONDS, background=queue)
        config["server"]["auth"] = {"provider_config": provider, "access_policy": POLICY, "route_policy": ROUTES}
        add_containers(config)

    folder = tmp_path_factory.mktemp("guarded")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", guard), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def users(guarded: LiveStack, upstream: Upstream) -> Iterator[dict[str, Wire]]:
    """Each user's own client, by name."""
    with ExitStack() as open_clients:
        yield {
            token.removeprefix("token-of-"): open_clients.enter_context(Wire(guarded, token=token)) for token in USERS
        }


def ids(wire: Wire) -> set[str]:
    """Return the ids of all responses that the user's list shows."""
    return {response["id"] for response in wire.listed(limit=100)}


def check_is_a_stranger(stranger: Wire, response: Json) -> None:
    """Check that this user gets the same errors for the response as for an id that never existed."""
    unknown = stranger.send_each_request(UNKNOWN)
    for name, answer in stranger.send_each_request(response["id"]).items():
        expected = error_of(unknown[name], 404)
        output = expected["message"].replace(UNKNOWN, response["id"])
        assert error_of(answer, 404) == expected | {"message": output}
    body = {"model": "local/echo", "input": "and?"}
    for stream in (False, True):
        error = error_of(stranger.post(body | {"previous_response_id": response["id"], "stream": stream}), 400)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert response["id"] not in ids(stranger)
    assert error_of(stranger.get("", after=response["id"]), 400)["param"] == "after"
    for item in response["output"]:
        reference = [{"type": "item_reference", "id": item["id"]}]
        assert error_of(stranger.post({"model": "local/echo", "input": reference}), 404)["param"] == "input"


def send_each_request(wire: Wire, conversation_id: str, item_id: str) -> dict[str, httpx.Response]:
    """Return the answers to every kind of request that names a conversation. The deletion comes last."""
    path, http = f"/conversations/{conversation_id}", wire.http
    items = {"items": [{"role": "user", "content": "let me in"}]}
    request = {"model": "local/echo", "input": "and?", "conversation": conversation_id}
    return {
        "retrieve": http.get(path),
        "items": http.get(f"{path}/items"),
        "item": http.get(f"{path}/items/{item_id}"),
        "update": http.post(path, json={"metadata": {}}),
        "add": http.post(f"{path}/items", json=items),
        "count": wire.http.post("/responses/input_tokens", json=request),
        "continue": wire.post(request),
        "stream": wire.post(request | {"stream": True}),
        "unstored": wire.post(request | {"store": False}),
        "queue": wire.post(request | {"background": True}),
        "delete item": http.delete(f"{path}/items/{item_id}"),
        "delete": http.delete(path),
    }


def check_is_a_strangers(stranger: Wire, conversation_id: str, item_id: str) -> None:
    """Check that this user gets the same errors for the conversation as for an unknown one."""
    unknown = send_each_request(stranger, UNKNOWN_CONVERSATION, item_id)
    for name, answer in send_each_request(stranger, conversation_id, item_id).items():
        expected = error_of(unknown[name], 404)
        output = expected["message"].replace(UNKNOWN_CONVERSATION, conversation_id)
        assert error_of(answer, 404) == expected | {"message": output}
    reference = {"type": "item_reference", "id": item_id}
    assert error_of(stranger.http.post("/conversations", json={"items": [reference]}), 404)["param"] == "items"


@pytest.mark.parametrize("token", [None, "unknown-token", ""])
def test_request_without_valid_token_is_401(guarded: LiveStack, users: dict[str, Wire], token: str | None) -> None:
    response = users["ada"].create(model="local/echo", input="x")
    with Wire(guarded, token=token) as anonymous:
        answers = [
            *anonymous.send_each_request(response["id"]).values(),
            anonymous.get(""),
            anonymous.post({"model": "local/echo"}),
        ]
        for answer in answers:
            assert answer.status_code == 401
            assert answer.json()["error"]["message"]
    assert users["ada"].retrieve(response["id"]) == response


def test_sdk_with_unknown_key_raises_authentication_error(guarded: LiveStack) -> None:
    with guarded.client(api_key="unknown-token") as client, pytest.raises(openai.AuthenticationError):
        client.responses.create(model="local/echo", input="x")


def test_response_of_another_user_is_not_found(users: dict[str, Wire]) -> None:
    response = users["ada"].create(model="local/echo", input="the code is 1234")
    check_is_a_stranger(users["bob"], response)
    assert users["ada"].retrieve(response["id"]) == response
    assert output_text(users["ada"].create(model="local/echo", input="go on", previous_response_id=response["id"]))


def test_prompt_of_another_user_is_not_compared(users: dict[str, Wire]) -> None:
    response = users["ada"].create(model="local/echo", input="the code is 1234")
    options = {"comparison_response_id": response["id"]}
    own, foreign = (
        users[name].create(model="local/echo", input="Hi", prompt_cache_options=options)["prompt_cache_diagnostics"]
        for name in ("ada", "bob")
    )
    assert own["reason"] == "input_changed"
    assert foreign == {"type": "comparison_response_not_found"}


def test_list_contains_only_own_responses(users: dict[str, Wire]) -> None:
    mine = {users["ada"].create(model="local/echo", input=str(n))["id"] for n in range(2)}
    theirs = {users["bob"].create(model="local/echo", input=str(n))["id"] for n in range(2)}
    assert mine <= ids(users["ada"])
    assert not theirs & ids(users["ada"])
    assert theirs <= ids(users["bob"])
    assert not mine & ids(users["bob"])


def test_access_policy_of_host_lets_team_read_but_not_change(users: dict[str, Wire]) -> None:
    """A team shares its responses, read-only for carol. Lists still contain a user's own responses only."""
    ada, carol = users["ada"], users["carol"]
    response = ada.create(model="local/echo", input="for the team")
    answers = carol.send_each_request(response["id"])
    assert answers["retrieve"].json() == response
    assert (answers["replay"].status_code, answers["items"].status_code) == (200, 200)
    for name in ("cancel", "delete"):
        assert response["id"] in error_of(answers[name], 403)["message"]
    child = carol.create(model="local/echo", input="thanks", previous_response_id=response["id"])
    assert response["id"] not in ids(carol)
    assert child["id"] in ids(carol)
    assert child["id"] not in ids(ada)
    check_is_a_stranger(users["bob"], child)
    assert carol.http.delete(f"/responses/{child['id']}").status_code == 200
    assert ada.retrieve(response["id"]) == response


def test_response_of_another_tenant_is_not_found(users: dict[str, Wire], host: Host) -> None:
    """Also with the same user and team names in both tenants. llama-stack has no tenants."""
    north, south = users["ada"], users["ada-in-the-south"]
    response = north.create(model="local/echo", input="of the north")
    if host == "llama_stack":
        assert south.retrieve(response["id"]) == response
        return
    check_is_a_stranger(south, response)
    assert north.retrieve(response["id"]) == response
    assert not ids(north) & ids(south)


def test_conversation_of_another_user_is_not_found(guarded: LiveStack, users: dict[str, Wire], host: Host) -> None:
    """The team can read it. Carol's changes are refused with a 403."""
    body = {"items": [{"role": "user", "content": "the code is 1234"}], "metadata": {"for": "the team"}}
    created = users["ada"].http.post("/conversations", json=body).json()
    path = f"/conversations/{created['id']}"
    [item] = users["ada"].http.get(f"{path}/items").json()["data"]
    for name in ("bob", "ada-in-the-south") if host == "ogx" else ("bob",):
        check_is_a_strangers(users[name], created["id"], item["id"])
    for name, answer in send_each_request(users["carol"], created["id"], item["id"]).items():
        if name in ("retrieve", "items", "item", "count"):
            assert answer.status_code == 200, answer.text
        else:
            assert created["id"] in error_of(answer, 403)["message"]
    assert users["ada"].http.get(path).json() == created
    assert users["ada"].http.get(f"{path}/items").json()["data"] == [item]
    assert {answer.status_code for answer in send_each_request(users["ada"], created["id"], item["id"]).values()} == {
        200
    }
    with Wire(guarded) as anonymous:
        assert anonymous.http.get(path).status_code == 401


def test_skills_of_container_are_shown_to_its_owner_only(users: dict[str, Wire], upstream: Upstream) -> None:
    container = users["ada"].http.post("/containers", json={"name": "mine", "skills": [skill()]}).json()["id"]
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    call = tool_call(0, "c1", "shell", '{"commands": ["cat skills/sums/SKILL.md"]}')
    for name, listed, item in (("ada", True, "shell_call_output"), ("bob", False, "message")):
        upstream.script("skilled", [reply(call), reply(text("Done."))])
        response = users[name].create(model="local/skilled", input="Hi", tools=[tool])
        [function] = upstream.requests("skilled")[-1].body["tools"]
        assert ("Skill 'sums'" in function["function"]["description"]) == listed
        assert response["output"][1]["type"] == item
    users["ada"].http.delete(f"/containers/{container}")


def test_stored_skill_is_its_owners_only(users: dict[str, Wire], upstream: Upstream, host: Host) -> None:
    """Neither the team nor a user of the same name in another tenant has access to it."""
    ada = users["ada"]
    created = ada.http.post("/skills", files={"files": ("sums.zip", archive())}).json()
    path = f"/skills/{created['id']}"
    reference = {"type": "skill_reference", "skill_id": created["id"]}
    shell = {"type": "shell", "environment": {"type": "container_auto", "skills": [reference]}}
    strangers = ["bob", "carol", *(["ada-in-the-south"] if host == "ogx" else [])]
    for stranger in (users[name] for name in strangers):
        for method, url, more in (
            ("GET", path, {}),
            ("POST", path, {"json": {"default_version": "1"}}),
            ("DELETE", path, {}),
            ("GET", f"{path}/content", {}),
            ("GET", f"{path}/versions", {}),
            ("POST", f"{path}/versions", {"files": {"files": ("sums.zip", archive())}}),
            ("GET", f"{path}/versions/1", {}),
            ("GET", f"{path}/versions/1/content", {}),
            ("DELETE", f"{path}/versions/1", {}),
        ):
            assert error_of(stranger.http.request(method, url, **more), 404)["param"] == "skill_id"
        assert stranger.http.get("/skills").json()["data"] == []
        for background in (False, True):
            request = {"model": "local/skilled", "input": "Hi", "tools": [shell], "background": background}
            refused = stranger.post(request)
            assert error_of(refused, 404)["param"] == "tools[0].environment.skills[0].skill_id"
        created_container = stranger.http.post("/containers", json={"name": "none", "skills": [reference]})
        assert error_of(created_container, 404)["param"] == "skills[0].skill_id"
    call = tool_call(0, "c1", "shell", '{"commands": ["skills/sums/scripts/add.sh 20 22"]}')
    upstream.script("skilled", [reply(call), reply(text("Done."))])
    response = ada.create(model="local/skilled", input="Hi", tools=[shell], background=True)
    wait_until(lambda: ada.retrieve(response["id"])["status"] == "completed")
    assert ada.retrieve(response["id"])["output"][1]["output"][0]["stdout"] == "42\n"
    assert ada.http.delete(path).status_code == 200


def test_background_response_belongs_to_its_requester(users: dict[str, Wire], upstream: Upstream) -> None:
    """While it runs and after its end."""
    upstream.script("held", reply(text("one ", "two"), hold=1))
    ada, carol = users["ada"], users["carol"]
    begun = ada.create(model="local/held", input="the code is 1234", background=True)
    upstream.wait_for("held", chunks=1)
    running = ada.retrieve(begun["id"])
    assert (running["status"], carol.retrieve(begun["id"])) == ("in_progress", running)
    check_is_a_stranger(users["bob"], running)
    for name, knock in {"cancel": carol.http.post, "delete": carol.http.delete}.items():
        path = f"/responses/{begun['id']}" + ("/cancel" if name == "cancel" else "")
        assert begun["id"] in error_of(knock(path), 403)["message"]
    with Reader.of(carol, begun["id"]) as reader:
        upstream.release("held")
        response = check_stream(reader.read_to_end())
    assert output_text(response) == "one two"
    assert ada.retrieve(begun["id"]) == response
    assert begun["id"] in ids(ada)
    assert begun["id"] not in ids(carol)
    check_is_a_stranger(users["bob"], response)


def test_queue_that_others_fill_has_room_for_a_newcomer(users: dict[str, Wire], upstream: Upstream) -> None:
    upstream.script("held", [reply(text("one ", "two"), hold=1)] * 2 + [reply(text("one ", "two"))])
    body = {"model": "local/held", "input": "Hi", "background": True}
    created = [(users[name], users[name].create(**body)["id"]) for name in ("ada", "bob")]
    upstream.wait_for("held", 2, chunks=1)
    created += [(users[name], users[name].create(**body)["id"]) for name in ("ada", "ada", "bob")]
    for name in ("ada", "bob"):
        error_of(users[name].post(body), 429)
    created.append((users["carol"], users["carol"].create(**body)["id"]))
    error_of(users["carol"].post(body), 429)
    upstream.release("held")
    wait_until(lambda: all(wire.retrieve(each)["status"] == "completed" for wire, each in created))


def test_equal_inputs_of_two_users_share_no_records(guarded: LiveStack, users: dict[str, Wire]) -> None:
    """With shared records, a user could find out that another user had sent the same text."""
    database = guarded.state_dir / "responses.db"
    body: Json = {
        "model": "local/echo",
        "input": [{"role": "user", "content": "the very same words", "id": "msg_same"}],
        "instructions": "The same instructions. " * 50,
    }
    names: dict[str, set[str]] = {}
    created: dict[str, Json] = {}
    for name in ("ada", "bob"):
        before = records(database).keys()
        created[name] = users[name].create(**body)
        names[name] = {key for key in records(database).keys() - before if key[0] in "nbfi"}
    assert {key[0] for key in names["ada"]} == {"n", "b", "f", "i"}
    assert len(names["bob"]) == len(names["ada"])
    assert not names["bob"] & names["ada"]

    users["ada"].http.delete(f"/responses/{created['ada']['id']}")
    assert users["bob"].retrieve(created["bob"]["id"]) == created["bob"]
    assert not names["ada"] & records(database).keys()
    # Equal ids that two clients chose name two items.
    upstream_item = {"type": "item_reference", "id": "msg_same"}
    assert output_text(users["bob"].create(model="local/echo", input=[upstream_item])) == "the very same words"
    assert error_of(users["ada"].post({"model": "local/echo", "input": [upstream_item]}), 404)


def test_file_of_another_user_is_not_found(guarded: LiveStack, upstream: Upstream) -> None:
    with guarded.client("token-of-ada") as ada, guarded.client("token-of-bob") as bob:
        file = ada.files.create(file=("secret.txt", b"the code is 1234"), purpose="assistants")
        questions: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": file.id}]}]
        ada.responses.create(model="local/echo", input=questions)
        assert len(upstream.requests("echo")) == 1
        with pytest.raises(openai.BadRequestError) as refused:
            bob.responses.create(model="local/echo", input=questions)
    assert refused.value.code == "file_not_found"
    assert len(upstream.requests("echo")) == 1


def test_prompt_of_another_user_is_not_found_where_the_host_isolates(
    guarded: LiveStack, host: Host, upstream: Upstream
) -> None:
    prompt: Any = {"id": PromptsClient(guarded, "token-of-ada").write("Say the code 1234.")}
    with guarded.client("token-of-ada") as ada, guarded.client("token-of-bob") as bob:
        assert ada.responses.create(model="local/echo", input="Hi", prompt=prompt).status == "completed"
        if host == "ogx":
            with pytest.raises(openai.NotFoundError) as refused:
                bob.responses.create(model="local/echo", input="Hi", prompt=prompt)
            assert (refused.value.param, refused.value.code) == ("prompt", "prompt_not_found")
        else:
            # llama-stack shares prompts among all users.
            assert bob.responses.create(model="local/echo", input="Hi", prompt=prompt).status == "completed"


def test_equal_idempotency_keys_of_two_users_do_not_collide(users: dict[str, Wire], upstream: Upstream) -> None:
    created = {
        name: wire.http.post(
            "/responses", json={"model": "local/echo", "input": "mine"}, headers={"idempotency-key": "the same"}
        ).json()["id"]
        for name, wire in users.items()
        if name in ("ada", "bob", "carol")
    }
    assert len(set(created.values())) == len(upstream.requests("echo")) == 3
    for name, response_id in created.items():
        assert users[name].retrieve(response_id)["status"] == "completed"


def test_user_claimed_in_provider_data_header_is_ignored(
    guarded: LiveStack, users: dict[str, Wire], host: Host
) -> None:
    response = users["ada"].create(model="local/echo", input="x")
    claim = {"principal": "ada", "attributes": {"teams": ["search"]}, "tenant_id": "north"}
    header = {PROVIDER_DATA[host]: json.dumps({"__authenticated_user": claim})}
    with Wire(guarded, token="token-of-bob", headers=header) as pretender:
        check_is_a_stranger(pretender, response)
    with Wire(guarded, headers=header) as anonymous:
        assert anonymous.get(f"/{response['id']}").status_code == 401


def test_without_auth_all_responses_have_one_owner(stack: LiveStack, wire: Wire, host: Host) -> None:
    """A user that the client claims to be is ignored."""
    header = {PROVIDER_DATA[host]: json.dumps({"__authenticated_user": {"principal": "ada", "attributes": {}}})}
    response = wire.create(model="local/echo", input="x")
    with Wire(stack, token="token-of-ada", headers=header) as claims:
        assert claims.retrieve(response["id"]) == response
        assert response["id"] in ids(claims)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_provider_key_of_user_reaches_model_server_and_is_not_stored(
    guarded: LiveStack, host: Host, upstream: Upstream, stream: bool
) -> None:
    key = f"unstored-key-{stream}"
    upstream.script("keys", reply(text("ok")))
    header = own_key(host, key)
    with Wire(guarded, token="token-of-ada", headers=header) as wire:
        if stream:
            wire.stream(model="local/keys", input="x")
        else:
            wire.create(model="local/keys", input="x")
    assert upstream.requests("keys")[0].headers["authorization"] == f"Bearer {key}"
    assert traces(guarded.state_dir, "token-of-") == []
    assert traces(guarded.state_dir, key) == []


def test_concurrent_requests_keep_their_users_and_keys(guarded: LiveStack, host: Host, upstream: Upstream) -> None:
    upstream.script("many", reply(text("o", "k"), interval=0.05))

    def ask(number: int) -> tuple[str, Json]:
        token = ("token-of-ada", "token-of-bob")[number % 2]
        header = own_key(host, f"key-{number}")
        with Wire(guarded, token=token, headers=header) as wire:
            return token, wire.create(model="local/many", input=f"I am {number}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(16)))
    for record in upstream.requests("many"):
        number = record.body["messages"][-1]["content"].removeprefix("I am ")
        assert record.headers["authorization"] == f"Bearer key-{number}"
    for token in ("token-of-ada", "token-of-bob"):
        with Wire(guarded, token=token) as wire:
            assert {response["id"] for who, response in answers if who == token} == {
                response["id"] for response in wire.listed(model="local/many")
            }


def test_provider_key_of_queued_job_is_stored_sealed_and_survives_a_kill(
    guarded: LiveStack, host: Host, upstream: Upstream
) -> None:
    """With `background` and with an Idempotency-Key: each job resumes with the key of its request."""
    upstream.script("sealed", [reply(text("one ", "two"), hold=1)] * 4 + [reply(text("one ", "two"))])
    created: list[tuple[str, str]] = []
    with ExitStack() as open_all:
        for token in ("token-of-ada", "token-of-bob"):
            for kind, body, name in (
                ("background", {"background": True}, "x-nothing"),
                ("keyed", {}, "idempotency-key"),
            ):
                which = f"{token[-3:]}-{kind}"
                header = own_key(host, f"canary-key-of-{which}") | {name: kind}
                wire = open_all.enter_context(Wire(guarded, token, header))
                fields = {"model": "local/sealed", "input": which, **body}
                reader = open_all.enter_context(Reader.create(wire, **fields))
                reader.read_to("one ")
                created.append((token, reader.response_id))
        assert traces(guarded.state_dir, "canary-key-of") == []
        guarded.kill()
    guarded.start()
    upstream.wait_for("sealed", 8, ended=True)
    for token, response_id in created:
        with Wire(guarded, token) as wire, Reader.of(wire, response_id) as again:
            # The output is that of the attempt after the kill.
            assert output_text(check_stream(again.read_to_end(), taken_over=True)) == "one two"
    for request in upstream.requests("sealed"):
        which = request.body["messages"][-1]["content"]
        assert request.headers["authorization"] == f"Bearer canary-key-of-{which}"
    for secret in ("canary-key-of", "token-of-", *SECRETS):
        assert traces(guarded.state_dir, secret) == []
    left = [key for key in records(guarded.state_dir / "responses.db") if key[0] in "hjkq"]
    assert left == []


@pytest.mark.parametrize("token", [None, "unknown-token"])
def test_readiness_needs_no_token(guarded: LiveStack, token: str | None) -> None:
    with Wire(guarded, token) as wire:
        wait_until(lambda: wire.http.get("/ready").json().get("status") == "ready")
        assert wire.get("").status_code == 401
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert wire.http.request(method, "/ready").status_code == 405


# On a WebSocket, which the hosts authenticate in part or not at all


@pytest.mark.parametrize("token", [None, "unknown-token", "", "token-of-dan"])
def test_websocket_handshake_without_access_is_refused(guarded: LiveStack, token: str | None) -> None:
    """Without a token, with an invalid one, and where the route policy forbids it."""
    with pytest.raises(InvalidStatus) as refused:
        WebSocketClient(guarded, token)
    assert refused.value.response.status_code in (401, 403)
    with Wire(guarded, token) as wire:
        assert wire.get("").status_code in (401, 403)


def test_websocket_of_another_user_cannot_continue_a_response(
    guarded: LiveStack, users: dict[str, Wire], host: Host
) -> None:
    tokens = ["token-of-bob", "token-of-ada-in-the-south"][: 2 if host == "ogx" else 1]
    with WebSocketClient(guarded, "token-of-ada") as ada:
        ada.ask(model="local/echo", input="the code is 1234")
        stored = ada.response()
        ada.ask(model="local/echo", input="between us", store=False)
        unstored = ada.response()
        for token in tokens:
            with WebSocketClient(guarded, token) as stranger:
                for response in (stored, unstored):
                    stranger.ask(model="local/echo", input="and?", previous_response_id=response["id"])
                    error = stranger.error()
                    assert (error["status"], error["code"]) == (400, "previous_response_not_found")
        for response in (stored, unstored):
            ada.ask(model="local/echo", input="go on", previous_response_id=response["id"])
            assert output_text(mine := ada.response())
            assert users["ada"].retrieve(mine["id"]) == mine
            assert mine["id"] not in ids(users["bob"])
            assert users["bob"].get(f"/{mine['id']}").status_code == 404


def test_provider_key_in_websocket_handshake_reaches_model_server(
    guarded: LiveStack, host: Host, upstream: Upstream
) -> None:
    upstream.script("keys", reply(text("ok")))
    with WebSocketClient(guarded, "token-of-ada", own_key(host, "key-of-a-connection")) as websocket:
        for store in (True, False):
            websocket.ask(model="local/keys", input="x", store=store)
            websocket.response()
    assert {each.headers["authorization"] for each in upstream.requests("keys")} == {"Bearer key-of-a-connection"}
    assert traces(guarded.state_dir, "key-of-a-connection") == []


def test_websocket_with_revoked_or_reassigned_token_is_401(
    guarded: LiveStack, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is checked again for requests on an open connection, which keeps its user."""
    monkeypatch.setitem(USERS, "revoked-token", USERS["token-of-carol"])
    with WebSocketClient(guarded, "revoked-token") as websocket, Wire(guarded, token="revoked-token") as wire:
        websocket.ask(model="local/echo", input="x")
        mine = websocket.response()
        monkeypatch.setitem(USERS, "revoked-token", USERS["token-of-bob"])
        wait_until(lambda: wire.get(f"/{mine['id']}").status_code == 404)
        websocket.ask(model="local/echo", input="x")
        assert websocket.error()["status"] == 401
        monkeypatch.delitem(USERS, "revoked-token")
        wait_until(lambda: wire.get("").status_code == 401)
        websocket.ask(model="local/echo", input="x")
        assert websocket.error()["status"] == 401
    assert len(upstream.requests("echo")) == 1


def test_auth_service_is_not_asked_for_each_request(
    guarded: LiveStack, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP and on a WebSocket, at once. No other test has the token: what the server keeps would reach into it."""
    monkeypatch.setitem(USERS, "other-token-of-bob", USERS["token-of-bob"])
    began = time.monotonic()
    with Wire(guarded, "other-token-of-bob") as wire, WebSocketClient(guarded, "other-token-of-bob") as websocket:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: wire.get(f"/{UNKNOWN}").status_code, range(40)))
        websocket.ask(model="local/echo", input="x")
        assert output_text(websocket.response())
    assert answers == [404] * 40
    asked = sum(each["token"] == "other-token-of-bob" for each in ASKED)
    assert 1 <= asked <= 1 + (time.monotonic() - began) / KEPT_SECONDS


def test_auth_service_that_is_overloaded_is_503_and_not_401(
    guarded: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(USERS, "token-of-erin-later", {"status": 503})
    with Wire(guarded, "token-of-erin-later") as wire:
        answer = wire.get("")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert error_of(answer, 503)["message"].startswith("The authentication service answered with the status 503.")
    with pytest.raises(InvalidStatus) as refused:
        WebSocketClient(guarded, "token-of-erin-later")
    assert refused.value.response.status_code == 503


# The hosts read a deprecated field of their own.
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_deletion_of_a_user_takes_their_files_and_prompts_and_no_others(
    guarded: LiveStack,
    users: dict[str, Wire],
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On llama-stack, prompts have no owner, and the command says that it leaves them; and the host stores chats."""
    files = {name: uploaded(users[name], f"Note of {name}.") for name in ("erin", "bob")}
    prompts = {name: PromptsClient(guarded, f"token-of-{name}").write("Be brief.") for name in files}
    chat = {"model": "local/echo", "messages": [{"role": "user", "content": "Question of erin."}]}
    assert users["erin"].http.post("/chat/completions", json=chat).is_success
    if host == "llama_stack":
        wait_until(lambda: users["erin"].http.get("/chat/completions").json().get("data"))
    monkeypatch.setenv("STATE_DIR", str(guarded.state_dir))
    who = ["--owner", "erin", *(["--tenant", "north"] if host == "ogx" else [])]
    config = ["--config", str(guarded.state_dir.parent / "config.yaml")]
    assert main(["export", *who, *config]) == 0
    lines = {line["type"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines["file"]["file"]["id"] == files["erin"]
    assert b64decode("".join(piece["base64"] for piece in lines["file"]["content"])) == b"Note of erin."
    assert ("Question of erin." in str(lines.get("chat_completion"))) == (host == "llama_stack")
    assert main(["delete", *who, *config]) == 2
    said = capsys.readouterr().err
    assert "1 files" in said
    assert main(["delete", *who, *config, "--yes"]) == 0
    assert [users[name].http.get(f"/files/{files[name]}").status_code for name in files] == [404, 200]
    assert users["bob"].http.get(f"/files/{files['bob']}/content").text == "Note of bob."
    if host == "llama_stack":
        assert users["erin"].http.get("/chat/completions").json()["data"] == []
    left = [users[name].http.get(f"/prompts/{prompts[name]}").is_success for name in prompts]
    if host == "ogx":
        assert lines["prompt"]["prompt"] == {"id": prompts["erin"]}
        assert [version["prompt"] for version in lines["prompt"]["versions"]] == ["Be brief."]
        assert left == [False, True]
    else:
        assert "Prompts are left as they are: llama-stack keeps them for all users, without an owner." in said
        assert left == [True, True]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_deletion_of_a_user_goes_on_beside_a_file_that_the_host_cannot_delete(
    guarded: LiveStack,
    users: dict[str, Wire],
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, stuck, last = (uploaded(users["erin"], f"Note {number}.") for number in range(3))
    answer = users["erin"].post({"model": "local/echo", "input": "x"}).json()
    [content] = guarded.state_dir.rglob(f"{stuck}*")
    content.unlink()
    content.mkdir()
    monkeypatch.setenv("STATE_DIR", str(guarded.state_dir))
    who = ["--owner", "erin", *(["--tenant", "north"] if host == "ogx" else [])]
    command = ["delete", *who, "--yes", "--config", str(guarded.state_dir.parent / "config.yaml")]
    assert main(command) == 1
    told = capsys.readouterr()
    assert "deleted files 2" in " ".join(told.out.split())
    assert f"The host could not delete the file {stuck} (IsADirectoryError). All else is deleted." in told.err
    assert [users["erin"].http.get(f"/files/{each}").status_code for each in (first, stuck, last)] == [404, 200, 404]
    assert users["erin"].get(f"/{answer['id']}").status_code == 404, (answer, told.out)
    content.rmdir()
    assert main(command) == 0
    assert users["erin"].http.get(f"/files/{stuck}").status_code == 404


def uploaded(wire: Wire, content: str) -> str:
    """Upload a file and return its id."""
    files = {"file": ("note.txt", content.encode())}
    return str(wire.http.post("/files", data={"purpose": "assistants"}, files=files).json()["id"])
