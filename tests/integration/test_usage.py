"""Usage of a live stack with users: every way to create a response counts once, and each user sees what they may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from llama_stack_responses.cli import main
from tests.support.auth import auth_server
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, reply, text
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

MODEL: Final = "local/used"
TOKENS: Final = {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}
ANSWER: Final = reply(text("Hello"), usage=TOKENS)
USERS: Final[dict[str, Json]] = {
    "ada": {"teams": ["search"], "keys": ["key_1"]},
    "bob": {"teams": ["search"], "roles": ["lead"]},
    "carol": {"teams": ["sales"]},
    "olga": {"roles": ["operator"]},
    "dave": {},
    "erin": {"teams": ["small"]},
    "fred": {},
    "gina": {"teams": ["plain"]},
    "hugo": {},
    "iris": {},
}
LIMITS: Final[list[Json]] = [
    {"match": "dave", "requests_per_minute": 12, "tokens_per_minute": 1_000_000},
    {"by": "team", "match": "small", "tokens_per_day": 150},
    {"match": "fred", "running": 1},
    {"match": "hugo", "tokens_per_day": 350},
    {"match": "iris", "requests_per_minute": 3},
]


@pytest.fixture(scope="module")
def served(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveStack, Path]]:
    """A stack with users that counts usage, and its configuration."""
    users = {f"token-of-{name}": {"principal": name, "attributes": more} for name, more in USERS.items()}
    with auth_server(users) as url:

        def change(config: Json) -> None:
            prices = [{"match": MODEL, "input": 2.0, "output": 10.0}]
            responses_config(config)["usage"] = {"metadata_key": "project", "prices": prices, "limits": LIMITS}
            roles = {"operator": {"roles": ["operator"]}, "team_lead": {"roles": ["lead"]}}
            responses_config(config)["roles"] = roles
            config["providers"]["inference"][0]["config"]["embedding_models"] = {"words-64": 64}
            config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": url}}

        folder = tmp_path_factory.mktemp("usage")
        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
        config = variant(STARTER, folder / "config.yaml", change)
        with LiveStack(config, env, folder / "state", host=host) as live:
            yield live, config


@pytest.fixture
def users(served: tuple[LiveStack, Path], upstream: Upstream) -> Iterator[dict[str, Wire]]:
    upstream.script("used", ANSWER)
    with ExitStack() as opened:
        yield {name: opened.enter_context(Wire(served[0], token=f"token-of-{name}")) for name in USERS}


@contextmanager
def administrator(stack: LiveStack, token: str) -> Iterator[Any]:
    url = f"{stack.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key=token, admin_api_key=token, max_retries=0) as client:
        yield client.admin.organization.usage


def completions(stack: LiveStack, name: str, project: str, *group_by: str) -> list[Json]:
    """Return the results of a project (of the metadata) in the last hours, as a user sees them."""
    start = int(time.time()) - 7200
    with administrator(stack, f"token-of-{name}") as administered:
        usage = administered.completions(start_time=start, bucket_width="1h", group_by=["metadata", *group_by])
    results = [result.model_dump() for bucket in usage.data for result in bucket.results]
    return [each for each in results if each["metadata"] == project]


def total(results: list[Json], name: str) -> int:
    return sum(each[name] for each in results)


def test_every_way_to_create_a_response_counts_once(
    served: tuple[LiveStack, Path], users: dict[str, Wire], upstream: Upstream
) -> None:
    stack, ada = served[0], users["ada"]
    body: Json = {"model": MODEL, "input": "Hi", "metadata": {"project": "every way"}}
    ada.create(**body)
    ada.create(**body, store=False)
    ada.stream(**body)
    ada.stream(**body, store=False)
    queued = ada.create(**body, background=True)
    wait_until(lambda: ada.retrieve(queued["id"])["status"] == "completed")
    answers = [ada.http.post("/responses", json=body, headers={"idempotency-key": "of-usage"}).json() for _ in range(2)]
    assert answers[0]["id"] == answers[1]["id"]
    with WebSocketClient(stack, token="token-of-ada") as websocket:
        websocket.ask(**body)
        websocket.response()
        websocket.ask(**body, store=False)
        websocket.response()
    upstream.script("used", reply(text("Hel"), end="drop"))
    assert ada.stream(**body)[-1]["type"] == "response.failed"

    results = completions(stack, "ada", "every way", "model", "api_key_id", "user_id", "project_id")
    names = ("model", "api_key_id", "user_id", "project_id")
    assert {tuple(each[name] for name in names) for each in results} == {(MODEL, "key_1", "ada", "search")}
    assert total(results, "num_model_requests") == 9
    # What the answer that broke off has used is estimated.
    assert 8 * 70 < total(results, "input_tokens") < 9 * 70
    assert 8 * 30 < total(results, "output_tokens") < 9 * 30


def test_deleted_response_still_counts_and_refused_one_never_did(
    served: tuple[LiveStack, Path], users: dict[str, Wire], upstream: Upstream
) -> None:
    carol = users["carol"]
    body = {"model": MODEL, "input": "Hi", "metadata": {"project": "deleted"}}
    carol.http.delete(f"/responses/{carol.create(**body)['id']}")
    upstream.script("used", error(400, "no"))
    assert carol.post(body).status_code == 400

    results = completions(served[0], "carol", "deleted")
    assert total(results, "num_model_requests") == 1


def test_users_leads_and_operators_see_what_they_may(served: tuple[LiveStack, Path], users: dict[str, Wire]) -> None:
    for name in ("ada", "bob", "carol"):
        users[name].create(model=MODEL, input="Hi", metadata={"project": "who"})

    seen = {
        name: {each["user_id"] for each in completions(served[0], name, "who", "user_id")}
        for name in ("ada", "bob", "carol", "olga")
    }
    assert seen == {"ada": {"ada"}, "bob": {"ada", "bob"}, "carol": {"carol"}, "olga": {"ada", "bob", "carol"}}


def test_costs_and_errors_are_in_the_form_of_openai(served: tuple[LiveStack, Path], users: dict[str, Wire]) -> None:
    users["bob"].create(model=MODEL, input="Hi")
    with administrator(served[0], "token-of-olga") as usage:
        costs = usage.costs(start_time=int(time.time()) - 86_400, group_by=["user_id", "line_item"])
        with pytest.raises(openai.BadRequestError) as refused:
            usage.completions(start_time=1, bucket_width="1m")
    by_line = {
        (result.user_id, result.line_item): (result.amount.value, result.quantity)
        for bucket in costs.data
        for result in bucket.results
    }
    value, quantity = by_line["bob", f"{MODEL}, output_tokens"]
    assert value == pytest.approx(quantity * 10.0 / 1e6)
    assert refused.value.param == "start_time"
    assert error_of(users["bob"].http.get("/organization/usage/embeddings?start_time=1"), 404)
    with administrator(served[0], "x") as usage, pytest.raises(openai.AuthenticationError):
        usage.costs(start_time=1)


def test_command_shows_what_the_routes_show(
    served: tuple[LiveStack, Path],
    users: dict[str, Wire],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack, config = served
    users["carol"].create(model=MODEL, input="Hi", metadata={"project": "command"})
    monkeypatch.setenv("STATE_DIR", str(stack.state_dir))
    for name, value in {"INFERENCE_URL": "http://localhost/v1"}.items():
        monkeypatch.setenv(name, value)

    assert main(["usage", "--config", str(config), "--by", "metadata,user"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2:4] for line in lines if line[:2] == ["command", "carol"]] == [["1", "70"]]


def test_requests_over_the_limit_are_refused_with_the_headers_of_openai(users: dict[str, Wire]) -> None:
    dave, body = users["dave"], {"model": MODEL, "input": "Hi"}
    answers = [dave.post(body | more) for more in ({}, {"store": False}, {"background": True}, {"stream": True})]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "12"
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000000"
        assert 0 <= int(answer.headers["x-ratelimit-remaining-requests"]) < 12
    # A minute may end in between.
    refused = next(answer for _ in range(30) if (answer := dave.post(body)).status_code != 200)
    error = error_of(refused, 429)
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(refused.headers["retry-after"]) <= 60


def test_used_quota_is_refused_and_not_tried_again(
    served: tuple[LiveStack, Path], users: dict[str, Wire], upstream: Upstream
) -> None:
    for _ in range(2):
        users["erin"].create(model=MODEL, input="Hi")
    asked = len(upstream.requests("used"))
    with client_of(served[0], "erin") as client:
        wait_until(lambda: is_refused(client, "insufficient_quota"))

    with WebSocketClient(served[0], token="token-of-erin") as websocket:
        websocket.ask(model=MODEL, input="Hi")
        assert websocket.error()["code"] == "insufficient_quota"
    # Before the server has settled, a third one may have begun.
    assert len(upstream.requests("used")) <= asked + 1


def client_of(stack: LiveStack, name: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.base_url}/v1", api_key=f"token-of-{name}", max_retries=5)


def is_refused(client: openai.OpenAI, code: str) -> bool:
    try:
        client.responses.create(model=MODEL, input="Hi")
    except openai.RateLimitError as error:
        found = (error.code, error.type, error.response.headers["x-should-retry"])
    else:
        return False
    assert found == (code, code, "false")
    return True


def test_openai_client_waits_for_a_slot_and_tries_again(
    served: tuple[LiveStack, Path], users: dict[str, Wire], upstream: Upstream
) -> None:
    upstream.script("used", [reply(text("a ", "b"), hold=1), ANSWER])
    with client_of(served[0], "fred") as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(users["fred"].post, {"model": MODEL, "input": "Hi"})
        wait_until(lambda: len(upstream.requests("used")) == 1)
        assert error_of(users["fred"].post({"model": MODEL, "input": "Hi"}), 429)["code"] == "rate_limit_exceeded"
        upstream.release("used")
        # The slot is free once the end of the first response is stored.
        patient = client.with_options(max_retries=60)
        assert patient.responses.create(model=MODEL, input="Hi").output_text == "Hello"
        assert first.result().status_code == 200


def test_requests_without_a_response_count_by_what_the_model_server_reports(
    served: tuple[LiveStack, Path], users: dict[str, Wire], upstream: Upstream
) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    with client_of(served[0], "gina") as client:
        client.chat.completions.create(model=MODEL, messages=messages)
        asked = client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage.total_tokens for chunk in asked if chunk.usage and not chunk.choices] == [100]
        unasked = [*client.chat.completions.create(model=MODEL, messages=messages, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in unasked) == "Hello"
        assert all(chunk.choices for chunk in unasked)
        upstream.script("used", [error(400, "stream_options: unknown field"), reply(text("Hello"))])
        [*client.chat.completions.create(model=MODEL, messages=messages, stream=True)]
        upstream.script("used", error(500, "broken"))
        with pytest.raises(openai.InternalServerError):
            client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=messages)
        client.embeddings.create(model="local/words-64", input="otters")

    start = int(time.time()) - 7200
    with administrator(served[0], "token-of-gina") as administered:
        usage = administered.completions(start_time=start, bucket_width="1h", group_by=["model"])
    counted: dict[str, list[int]] = {}
    for each in [result.model_dump() for bucket in usage.data for result in bucket.results]:
        counts = [each["num_model_requests"], each["input_tokens"], each["output_tokens"]]
        counted[each["model"]] = [*map(sum, zip(counted.get(each["model"], [0, 0, 0]), counts, strict=True))]
    # One stream has no usage: its tokens are estimated.
    requests, read, written = counted[MODEL]
    assert requests == 5
    assert 3 * 70 < read < 4 * 70
    assert 3 * 30 < written < 4 * 30
    assert counted["local/words-64"][0] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_requests_without_a_response_are_within_the_limits(
    served: tuple[LiveStack, Path], users: dict[str, Wire], stream: bool
) -> None:
    hugo = users["hugo"].http
    chat: Json = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}

    def is_used_up() -> bool:
        answer = hugo.post("/chat/completions", json=chat)
        return answer.status_code == 429 and error_of(answer, 429)["code"] == "insufficient_quota"

    wait_until(is_used_up)
    assert error_of(hugo.post("/responses/compact", json={"model": MODEL, "input": "Hi"}), 429)["type"] == (
        "insufficient_quota"
    )
    assert error_of(hugo.post("/responses", json={"model": MODEL, "input": "Hi"}), 429)


def test_requests_a_minute_are_those_of_all_routes_for_models(users: dict[str, Wire]) -> None:
    iris = users["iris"].http
    chat: Json = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    bodies: list[tuple[str, Json]] = [
        ("/chat/completions", chat),
        ("/chat/completions", chat | {"stream": True}),
        ("/embeddings", {"model": "local/words-64", "input": "otters"}),
        ("/responses/compact", {"model": MODEL, "input": "Hi"}),
    ]
    # A minute may end in between.
    answers = [iris.post(path, json=body) for _ in range(3) for path, body in bodies]
    assert {answer.status_code for answer in answers} == {200, 429}
    for answer in answers:
        if "responses" not in answer.url.path:
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
    assert answers[0].status_code == answers[1].status_code == 200
