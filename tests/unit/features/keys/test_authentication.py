"""Keys as the auth of llama-stack's middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from llama_stack.core.datatypes import AuthenticationConfig
from llama_stack.core.server.auth import AuthenticationMiddleware

from llama_stack_responses.config.stack_file import KEYS_ENDPOINT
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.keys.authentication import KeyAuthentication
from llama_stack_responses.host import authentication
from llama_stack_responses.host.authentication import remembering_users
from llama_stack_responses.store.access_keys import AccessKeys, NewKey
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.records import WatchedRecords

type Json = dict[str, Any]
type Ask = Callable[..., Awaitable[tuple[int, Any]]]

NEW = NewKey("laptop", Owner("ada"), "search", ["lead"])


class Store(WatchedRecords):
    """Counts the calls by name, on a clock that the test sets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        async def count(name: str) -> None:
            self.calls.append(name)

        self.time = SimpleNamespace(now=1_000.0)
        super().__init__(MemoryRecords(clock=lambda: self.time.now), before=count)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def keys(store: Store) -> AccessKeys:
    return AccessKeys(store)


def middleware(keys: AccessKeys, seconds: float = 30, use_seconds: float = 60) -> Ask:
    """Return what sends a request with an `Authorization` header through the host's middleware."""
    authenticate = KeyAuthentication(keys, use_seconds).authenticate
    call: Any = remembering_users(seconds, authenticate)(AuthenticationMiddleware.__call__)
    kind = type("Remembering", (AuthenticationMiddleware,), {"__call__": call})
    settings = AuthenticationConfig(provider_config={"type": "custom", "endpoint": KEYS_ENDPOINT})
    guarded = kind(_answer, settings, {})

    async def ask(*values: str) -> tuple[int, Any]:
        sent: list[Json] = []

        async def send(message: Json) -> None:
            sent.append(message)

        headers = [(b"authorization", value.encode()) for value in values]
        scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}
        await guarded(scope, None, send)
        return sent[0]["status"], sent[1]["body"]

    return ask


async def _answer(scope: Json, _: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": (scope["principal"], scope.get("user_attributes"))})


async def test_token_of_a_key_is_its_user_without_a_service(keys: AccessKeys) -> None:
    key, token = await keys.create(NEW)
    status, user = await middleware(keys)(f"Bearer {token}")
    assert (status, user) == (200, ("ada", {"keys": [key.id], "teams": ["search"], "roles": ["lead"]}))


async def test_requests_with_a_known_token_ask_the_store_once(keys: AccessKeys, store: Store) -> None:
    _, token = await keys.create(NEW)
    ask = middleware(keys)
    await asyncio.gather(*(ask(f"Bearer {token}") for _ in range(50)))
    store.calls.clear()
    await asyncio.gather(*(ask(f"Bearer {token}") for _ in range(50)))
    assert store.calls == []


async def test_every_refusal_has_the_same_answer(keys: AccessKeys, store: Store) -> None:
    """An attacker does not learn whether a key exists, or what is wrong with it."""
    key, token = await keys.create(NEW)
    ended, ended_token = await keys.create(NewKey("ended", Owner("bob"), seconds=-1))
    revoked, revoked_token = await keys.create(NEW)
    await keys.revoke(revoked.id)
    unknown = token.replace(key.id.removeprefix("key_"), "0" * 24)
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    ask = middleware(keys)
    answers = [await ask(f"Bearer {each}") for each in (ended_token, revoked_token, unknown, wrong, "x", "sk-lsr-")]
    assert {status for status, _ in answers} == {401}
    assert len({body for _, body in answers}) == 1
    for each in (token, wrong, key.id, ended.id):
        assert each.encode() not in answers[0][1]


@pytest.mark.parametrize(
    "form", ["bearer {}", "Basic {}", "{}", "Bearer  {}", "Bearer {} ", "Bearer {},Bearer {}", "Bearer"]
)
async def test_header_in_another_form_is_refused(keys: AccessKeys, form: str) -> None:
    _, token = await keys.create(NEW)
    assert (await middleware(keys)(form.replace("{}", token)))[0] == 401


async def test_request_without_header_or_with_two_is_one_user_or_none(keys: AccessKeys) -> None:
    _, token = await keys.create(NEW)
    ask = middleware(keys)
    assert (await ask())[0] == 401
    assert (await ask(f"Bearer {token}", "Bearer wrong"))[0] == 401
    assert (await ask("Bearer wrong", f"Bearer {token}"))[1][0] == "ada"


async def test_malformed_token_does_not_reach_the_store(keys: AccessKeys, store: Store) -> None:
    ask = middleware(keys)
    for number in range(20):
        assert (await ask(f"Bearer wrong-{number}"))[0] == 401
    assert store.calls == []


async def test_revoked_key_is_refused_within_auth_cache_seconds(
    keys: AccessKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now[0]))
    key, token = await keys.create(NEW)
    siblings = [middleware(keys, seconds=30) for _ in range(2)]
    for ask in siblings:
        assert (await ask(f"Bearer {token}"))[0] == 200
    await keys.revoke(key.id)
    now[0] += 29.9
    for ask in siblings:
        assert (await ask(f"Bearer {token}"))[0] == 200
    now[0] += 0.2
    for ask in siblings:
        assert (await ask(f"Bearer {token}"))[0] == 401


async def test_key_is_refused_when_it_expires_though_it_is_remembered(
    keys: AccessKeys, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now[0]))
    _, token = await keys.create(NewKey("short", Owner("ada"), seconds=10))
    ask = middleware(keys, seconds=30)
    assert (await ask(f"Bearer {token}"))[0] == 200
    now[0] += 10.1
    store.time.now += 10.1
    assert (await ask(f"Bearer {token}"))[0] == 401


async def test_unavailable_store_is_503_and_not_a_wrong_key(keys: AccessKeys, store: Store) -> None:
    _, token = await keys.create(NEW)
    store.away = True
    ask = middleware(keys)
    assert (await ask(f"Bearer {token}"))[0] == 503
    store.away = False


async def test_use_is_written_once_in_its_interval(keys: AccessKeys, store: Store) -> None:
    key, token = await keys.create(NEW)
    clock = SimpleNamespace(now=0.0)
    knows = KeyAuthentication(keys, 60, lambda: clock.now)
    store.calls.clear()
    for _ in range(10):
        assert await knows.authenticate(token)
    assert store.calls.count("commit") == 1
    assert await keys.last_uses([key.id]) == {key.id: 1_000}
    clock.now, store.time.now = 61.0, 1_061.0
    await knows.authenticate(token)
    assert await keys.last_uses([key.id]) == {key.id: 1_061}


async def test_use_that_cannot_be_written_refuses_nobody(keys: AccessKeys, store: Store) -> None:
    _, token = await keys.create(NEW)

    async def fail(name: str) -> None:
        store.away = name == "commit"

    store._before = fail
    assert await KeyAuthentication(keys, 60).authenticate(token)


async def test_endpoint_of_keys_without_keys_lets_nobody_in() -> None:
    call: Any = remembering_users(30)(AuthenticationMiddleware.__call__)
    kind = type("Remembering", (AuthenticationMiddleware,), {"__call__": call})
    settings = AuthenticationConfig(provider_config={"type": "custom", "endpoint": KEYS_ENDPOINT})
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/responses", "headers": [(b"authorization", b"Bearer x")]}
    await kind(_answer, settings, {})(scope, None, send)
    assert sent[0]["status"] in (401, 503)
