"""What operators may do for others, and what is written of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.audit_log import AuditLog, wanted_entries
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.wire import operators
from tests.support.administration import ADA, BOB, LEAD, OPERATOR, Administered, administered
from tests.support.records import WatchedRecords

UNKNOWN = f"resp_{'0' * 24}"


@pytest.fixture
async def server() -> AsyncIterator[Administered]:
    async with administered() as made:
        yield made


async def conversation_of(server: Administered, user: Owner) -> str:
    body = {"items": [{"role": "user", "content": "the code is 1234"}]}
    status, made = await server.ask(user, "POST", "/conversations", body)
    assert status == 200, made
    return str(made["id"])


def paths(response_id: str, conversation_id: str) -> list[tuple[str, str]]:
    """Return a request for each route."""
    one, talk = f"/admin/responses/{response_id}", f"/admin/conversations/{conversation_id}"
    return [
        ("GET", "/admin/responses"),
        ("GET", one),
        ("GET", f"{one}/input_items"),
        ("POST", f"{one}/cancel"),
        ("GET", "/admin/conversations"),
        ("GET", talk),
        ("GET", f"{talk}/items"),
        ("GET", "/admin/audit"),
        ("DELETE", one),
        ("DELETE", talk),
    ]


@pytest.mark.parametrize(
    "user", [ADA, LEAD, None, Owner("x", {"teams": ["operator"], "roles": ["operators", "Operator"]})]
)
async def test_others_are_refused_and_the_refusal_is_written(server: Administered, user: Owner | None) -> None:
    """Also without authentication, and for their own response."""
    response, talk = await server.respond(ADA), await conversation_of(server, ADA)
    routes = paths(response["id"], talk)
    for method, path in routes:
        status, body = await server.ask(user, method, path)
        assert (status, body["error"]["code"]) == (403, "insufficient_permissions"), path
    acts = await server.acts()
    assert {outcome for _, outcome, _ in acts} == {"refused"}
    assert len(acts) == len(routes)
    assert ("response.deleted", "refused", response["id"]) in acts
    assert (await server.ask(ADA, "GET", f"/responses/{response['id']}"))[0] == 200


@pytest.mark.parametrize("roles", [{}, {"team_lead": {"roles": ["lead"]}}])
async def test_routes_are_absent_until_operators_are_configured(roles: Any) -> None:
    async with administered(roles=roles, keys=None) as server:
        for method, path in paths(UNKNOWN, "conv_1"):
            assert (await server.ask(OPERATOR, method, path))[0] in (403, 404), path
        assert (await server.ask(ADA, "GET", "/admin/audit"))[0] == (403 if roles else 404)


async def test_operator_reads_and_deletes_what_others_have(server: Administered) -> None:
    response, talk = await server.respond(ADA), await conversation_of(server, BOB)
    one = f"/admin/responses/{response['id']}"
    status, found = await server.ask(OPERATOR, "GET", one)
    assert (status, found.pop("owner")) == (
        200,
        {"principal": "ada", "attributes": {"teams": ["search"]}, "tenant": ""},
    )
    assert found == response
    items = (await server.ask(OPERATOR, "GET", f"{one}/input_items"))[1]["data"]
    assert items[0]["content"][0]["text"] == "Hi"
    assert (await server.ask(OPERATOR, "POST", f"{one}/cancel"))[0] == 400
    assert (await server.ask(OPERATOR, "DELETE", one))[1] == {
        "id": response["id"],
        "object": "response",
        "deleted": True,
    }
    assert (await server.ask(ADA, "GET", f"/responses/{response['id']}"))[0] == 404
    path = f"/admin/conversations/{talk}"
    assert (await server.ask(OPERATOR, "GET", path))[1]["owner"]["principal"] == "bob"
    assert (await server.ask(OPERATOR, "GET", f"{path}/items"))[1]["data"][0]["role"] == "user"
    assert (await server.ask(OPERATOR, "DELETE", path))[1]["deleted"]
    assert (await server.ask(BOB, "GET", f"/conversations/{talk}"))[0] == 404
    assert await server.acts() == [
        ("conversation.deleted", "allowed", talk),
        ("conversation.read", "allowed", talk),
        ("conversation.read", "allowed", talk),
        ("response.deleted", "allowed", response["id"]),
        ("response.cancelled", "allowed", response["id"]),
        ("response.read", "allowed", response["id"]),
        ("response.read", "allowed", response["id"]),
    ]


async def test_role_gives_nothing_outside_of_its_routes(server: Administered) -> None:
    """An operator continues no response of another user by mistake, and lists their own."""
    response = await server.respond(ADA)
    assert (await server.ask(OPERATOR, "GET", f"/responses/{response['id']}"))[0] == 404
    body = {"model": "m", "input": "x", "previous_response_id": response["id"]}
    assert (await server.ask(OPERATOR, "POST", "/responses", body))[0] == 400
    assert (await server.ask(OPERATOR, "GET", "/responses"))[1]["data"] == []
    assert await server.acts() == []


async def test_operator_lists_pages_of_all_and_of_one(server: Administered) -> None:
    made = [(await server.respond(user))["id"] for user in (ADA, BOB, ADA, BOB, ADA)]
    found: list[str] = []
    after = ""
    while True:
        status, page = await server.ask(OPERATOR, "GET", f"/admin/responses?limit=2{after}")
        assert status == 200, page
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert sorted(found) == sorted(made)
    of_bob = (await server.ask(OPERATOR, "GET", "/admin/responses?owner=bob"))[1]["data"]
    assert {each["id"] for each in of_bob} == {made[1], made[3]}
    assert {each["owner"]["principal"] for each in of_bob} == {"bob"}
    assert (await server.ask(OPERATOR, "GET", "/admin/responses?status=failed"))[1]["data"] == []
    assert (await server.ask(OPERATOR, "GET", f"/admin/responses?after={UNKNOWN}"))[0] == 400


async def test_page_of_which_no_row_is_wanted_is_bounded_and_goes_on(
    server: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_stack_responses.store.all_lists.SCAN_SECONDS", 0.0)
    await server.respond(ADA)
    _, page = await server.ask(OPERATOR, "GET", "/admin/responses?status=failed")
    assert (page["data"], page["has_more"]) == ([], True)
    _, rest = await server.ask(OPERATOR, "GET", f"/admin/responses?status=failed&after={page['last_id']}")
    assert (rest["data"], rest["has_more"]) == ([], False)
    for after in ("resp_1", UNKNOWN, "x"):
        status, body = await server.ask(OPERATOR, "GET", f"/admin/responses?after={after}")
        assert (status, body["error"]["param"]) == (400, "after"), after


async def test_user_who_is_a_filter_of_a_list_may_have_a_long_name(server: Administered) -> None:
    owned = ("responses?owner", "ui/responses?owner", "conversations?owner", "audit?owner")
    for query in (*owned, "audit?actor"):
        assert (await server.ask(OPERATOR, "GET", f"/admin/{query}={'x' * 8192}"))[0] == 200, query
        status, body = await server.ask(OPERATOR, "GET", f"/admin/{query}={'x' * 8193}")
        assert (status, body["error"]["param"]) == (400, query.partition("?")[2]), query


async def test_refusals_of_a_user_count_together_in_all_features(server: Administered) -> None:
    for number in range(30):
        path = ("/admin/responses", f"/admin/scores/{UNKNOWN}", f"/admin/links/{UNKNOWN}")[number % 3]
        assert (await server.ask(ADA, "GET", path))[0] == 403
    assert len(await server.acts()) == operators._MAX_REFUSED


@pytest.mark.parametrize("path", ["ui/x", "scores/x/y", "links/x/y", "responses/x/y/z"])
async def test_unknown_path_is_said_to_be_one(server: Administered, path: str) -> None:
    status, body = await server.ask(OPERATOR, "GET", f"/admin/{path}")
    assert (status, body["error"]["message"]) == (404, f"Invalid URL (GET /v1/admin/{path}).")


async def test_operator_lists_conversations(server: Administered) -> None:
    made = {await conversation_of(server, user) for user in (ADA, BOB, ADA)}
    page = (await server.ask(OPERATOR, "GET", "/admin/conversations?limit=2"))[1]
    rest = (await server.ask(OPERATOR, "GET", f"/admin/conversations?after={page['last_id']}"))[1]
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert {each["id"] for each in page["data"] + rest["data"]} == made
    of_bob = (await server.ask(OPERATOR, "GET", "/admin/conversations?owner=bob"))[1]["data"]
    assert [each["owner"]["principal"] for each in of_bob] == ["bob"]


async def test_unknown_object_is_not_found_and_written(server: Administered) -> None:
    assert (await server.ask(OPERATOR, "GET", f"/admin/responses/{UNKNOWN}"))[0] == 404
    assert (await server.ask(OPERATOR, "DELETE", "/admin/conversations/conv_x"))[0] == 404
    assert await server.acts() == [
        ("conversation.deleted", "refused", "conv_x"),
        ("response.read", "refused", UNKNOWN),
    ]


async def test_entry_says_who_from_where_and_of_whom(server: Administered) -> None:
    response = await server.respond(ADA)
    headers = {"x-forwarded-for": "192.0.2.1", "user-agent": "curl/8"}
    await server.ask(OPERATOR, "GET", f"/admin/responses/{response['id']}", headers=headers)
    page = (await server.ask(OPERATOR, "GET", "/admin/audit?type=response.read&actor=olga"))[1]
    [entry] = page["data"]
    who = {"id": "olga", "email": None}
    assert entry["actor"] == {
        "type": "api_key",
        "session": {"user": who, "ip_address": "127.0.0.1", "forwarded_for": "192.0.2.1", "user_agent": "curl/8"},
        "api_key": {"id": "key_of_olga", "type": "user", "user": who},
    }
    assert "ada" not in str(entry)
    assert (await server.ask(OPERATOR, "GET", "/admin/audit?owner=ada"))[1]["data"] == [entry]
    assert (await server.ask(OPERATOR, "GET", f"/admin/audit?resource_id={response['id']}"))[1]["data"] == [entry]
    for query in ("owner=bob", "actor=ada", "resource_id=x", "type=response.deleted"):
        assert (await server.ask(OPERATOR, "GET", f"/admin/audit?{query}"))[1]["data"] == []


async def test_nothing_is_done_that_cannot_be_written() -> None:
    store = WatchedRecords(MemoryRecords())
    async with administered(store) as server:
        response = await server.respond(ADA)
        store.away = True
        assert (await server.ask(OPERATOR, "DELETE", f"/admin/responses/{response['id']}"))[0] == 503
        store.away = False
        assert (await server.ask(ADA, "GET", f"/responses/{response['id']}"))[0] == 200


async def test_refused_acts_of_a_user_do_not_fill_the_store(
    server: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "_MAX_REFUSED", 3)
    for _ in range(10):
        assert (await server.ask(ADA, "GET", "/admin/audit"))[0] == 403
    assert (await server.ask(BOB, "GET", "/admin/audit"))[0] == 403
    assert [outcome for _, outcome, _ in await server.acts()] == ["refused"] * 4


async def test_audit_log_is_read_in_pages_and_expires() -> None:
    now = 1_000.0
    async with administered(
        MemoryRecords(clock=lambda: now), roles={"operator": {"roles": ["operator"]}, "audit_days": 1}
    ) as server:
        for number in range(5):
            await server.ask(OPERATOR, "GET", f"/admin/responses/resp_{number}")
        page = (await server.ask(OPERATOR, "GET", "/admin/audit?limit=3&type=response.read"))[1]
        rest = (await server.ask(OPERATOR, "GET", f"/admin/audit?type=response.read&after={page['last_id']}"))[1]
        assert sorted(each["resource"]["id"] for each in page["data"] + rest["data"]) == [f"resp_{n}" for n in range(5)]
        now += 86_401
        assert await server.acts() == []


async def test_page_of_the_audit_log_needs_an_id_of_an_entry() -> None:
    log = AuditLog(MemoryRecords(), 10)
    with pytest.raises(ApiError, match="Invalid 'after'"):
        await log.page(1, "audit_/../x")
    assert await log.page(1, f"audit_{'f' * 24}", wanted_entries()) == ([], None)


async def test_operator_of_one_tenant_sees_nothing_of_another(server: Administered) -> None:
    """Only OGX has tenants; here, the owner is of one, and the operator of none."""
    response, talk = await server.respond(ADA), await conversation_of(server, ADA)
    view = await server.impl.archive.entry(response["id"])
    assert view
    assert view.owner.tenant == ""
    south = Owner("ada", tenant="south")
    for key, record in list((await server.records.get_many([f"r/{response['id']}", f"c/{talk}"])).items()):
        await _give_to(server, key, record.value, south)
    for path in (f"/admin/responses/{response['id']}", f"/admin/conversations/{talk}"):
        assert (await server.ask(OPERATOR, "GET", path))[0] == 404
        assert (await server.ask(OPERATOR, "DELETE", path))[0] == 404
    assert (await server.ask(OPERATOR, "GET", "/admin/responses"))[1]["data"] == []
    assert (await server.ask(OPERATOR, "GET", "/admin/conversations"))[1]["data"] == []


async def _give_to(server: Administered, key: str, value: bytes, owner: Owner) -> None:
    from llama_stack_responses.store import codec
    from llama_stack_responses.store.records import Put

    changed = codec.decode(value) | {"owner": owner.encode()}
    await server.records.commit([Put(key, codec.encode(changed))])
