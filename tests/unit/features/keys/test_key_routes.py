"""The routes of keys, for operators and for leads of teams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.admin.organization import AdminAPIKey, AdminAPIKeyCreateResponse, AdminAPIKeyDeleteResponse

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.access_keys import AccessKeys, NewKey
from tests.support.administration import ADA, LEAD, OPERATOR, Administered, administered

type Json = dict[str, Any]

UNKNOWN = f"key_{'0' * 24}"
PATH = "/admin/keys"


@pytest.fixture
async def server() -> AsyncIterator[Administered]:
    async with administered() as made:
        yield made


async def created(server: Administered, user: Owner = OPERATOR, **fields: Any) -> Json:
    """Return a key that this user creates."""
    status, key = await server.ask(user, "POST", PATH, {"name": "laptop", **fields})
    assert status == 200, key
    return key


async def test_key_has_the_shape_of_an_admin_key_of_openai(server: Administered) -> None:
    made = await created(
        server, owner="ada", team="search", models=["local/*"], limits={"tokens_per_day": 5}, expires_in_seconds=60
    )
    value = made.pop("value")
    AdminAPIKeyCreateResponse.model_validate(made | {"value": value}, strict=True)
    status, found = await server.ask(OPERATOR, "GET", f"{PATH}/{made['id']}")
    AdminAPIKey.model_validate(found, strict=True)
    assert (status, found) == (200, made)
    assert value[32:] not in str(found)
    accepted = await AccessKeys(server.records).authenticate(value)
    assert accepted
    given = {"teams": ["search"], "models": ["local/*"], "limits": ["tokens_per_day=5"]}
    assert accepted.key.user.attributes == {"keys": [made["id"]], **given}
    status, gone = await server.ask(OPERATOR, "DELETE", f"{PATH}/{made['id']}")
    AdminAPIKeyDeleteResponse.model_validate(gone, strict=True)
    assert await AccessKeys(server.records).authenticate(value) is None


async def test_key_without_owner_is_the_users_own(server: Administered) -> None:
    assert (await created(server))["owner"]["id"] == "olga"


async def test_rotation_keeps_the_old_token_for_its_overlap(server: Administered) -> None:
    made, keys = await created(server, owner="ada"), AccessKeys(server.records)
    path = f"{PATH}/{made['id']}/rotate"
    rotated = (await server.ask(OPERATOR, "POST", path))[1]
    assert await keys.authenticate(made["value"])
    again = (await server.ask(OPERATOR, "POST", path, {"overlap_seconds": 0}))[1]
    for token, accepted in ((made["value"], False), (rotated["value"], False), (again["value"], True)):
        assert bool(await keys.authenticate(token)) == accepted
    await server.ask(OPERATOR, "DELETE", f"{PATH}/{made['id']}")
    assert (await server.ask(OPERATOR, "POST", path))[0] == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "x", "owner": ["ada"]}, "owner"),
        ({"name": "x", "owner": "a\nb"}, "owner"),
        ({"name": "x", "team": "t" * 257}, "team"),
        ({"name": "x", "roles": "operator"}, "roles"),
        ({"name": "x", "roles": [""]}, "roles"),
        ({"name": "x", "models": []}, "models"),
        ({"name": "x", "models": ["*a"]}, "models"),
        ({"name": "x", "limits": []}, None),
        ({"name": "x", "limits": {"a": "1"}}, "limits"),
        ({"name": "x", "limits": {"running": True}}, "limits"),
        ({"name": "x", "limits": {"running": "1"}}, "limits"),
        ({"name": "x", "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"name": "x", "expires_in_seconds": 1.5}, "expires_in_seconds"),
        ({"name": "x", "expires_in_seconds": True}, "expires_in_seconds"),
        ({"name": "x", "tenant": "south"}, "tenant"),
        ([], None),
    ],
)
async def test_wrong_key_is_refused(server: Administered, body: Any, param: str | None) -> None:
    status, answer = await server.ask(OPERATOR, "POST", PATH, body)
    if body == {"name": "x", "limits": []}:
        assert status == 200
        return
    assert (status, answer["error"]["param"]) == (400, param)
    assert (await server.ask(OPERATOR, "GET", PATH))[1]["data"] == []


async def test_keys_are_listed_in_pages_by_owner_and_team(server: Administered) -> None:
    made = [
        (await created(server, owner=owner, team=team))["id"]
        for owner, team in (("ada", "search"), ("bob", "sales"), ("ada", "sales"))
    ]
    page = (await server.ask(OPERATOR, "GET", f"{PATH}?limit=2"))[1]
    rest = (await server.ask(OPERATOR, "GET", f"{PATH}?after={page['last_id']}"))[1]
    assert {each["id"] for each in page["data"] + rest["data"]} == set(made)
    assert (page["has_more"], rest["has_more"]) == (True, False)
    for query, wanted in (("owner=ada", {0, 2}), ("team=sales", {1, 2}), ("owner=ada&team=sales", {2})):
        found = (await server.ask(OPERATOR, "GET", f"{PATH}?{query}"))[1]["data"]
        assert {each["id"] for each in found} == {made[number] for number in wanted}


@pytest.mark.parametrize("user", [ADA, None])
async def test_others_are_refused_and_the_refusal_is_written(server: Administered, user: Owner | None) -> None:
    key = (await created(server, owner="ada", team="search"))["id"]
    requests = [
        ("POST", PATH, {"name": "mine"}),
        ("GET", PATH, None),
        ("GET", f"{PATH}/{key}", None),
        ("POST", f"{PATH}/{key}/rotate", None),
        ("DELETE", f"{PATH}/{key}", None),
    ]
    for method, path, body in requests:
        assert (await server.ask(user, method, path, body))[0] == 403
    acts = await server.acts()
    assert [outcome for _, outcome, _ in acts] == ["refused"] * 5 + ["allowed"]
    assert {act for act, _, _ in acts} == {
        "api_key.created",
        "api_key.listed",
        "api_key.read",
        "api_key.updated",
        "api_key.deleted",
    }


async def test_lead_manages_the_keys_of_the_own_team_only(server: Administered) -> None:
    own = await created(server, owner="ada", team="search")
    foreign = await created(server, owner="bob", team="sales")
    assert [each["id"] for each in (await server.ask(LEAD, "GET", PATH))[1]["data"]] == [own["id"]]
    for method, rest in (("GET", ""), ("POST", "/rotate"), ("DELETE", "")):
        status, refused = await server.ask(LEAD, method, f"{PATH}/{foreign['id']}{rest}")
        unknown = (await server.ask(LEAD, method, f"{PATH}/{UNKNOWN}{rest}"))[1]
        assert status == 404
        assert refused["error"]["message"].replace(foreign["id"], UNKNOWN) == unknown["error"]["message"]
    assert (await created(server, LEAD, owner="ada"))["team"] == "search"
    assert (await server.ask(LEAD, "POST", f"{PATH}/{own['id']}/rotate"))[0] == 200
    assert (await server.ask(LEAD, "DELETE", f"{PATH}/{own['id']}"))[0] == 200
    assert (await AccessKeys(server.records).find(foreign["id"]) or pytest.fail("gone")).revoked_at is None


@pytest.mark.parametrize(
    "fields",
    [
        {"owner": "ada", "roles": ["operator"]},
        {"owner": "ada", "roles": ["lead"]},
        {"owner": "ada", "team": "sales"},
        {"owner": "bob"},
        {"owner": "olga"},
        {"owner": "both"},
        {"owner": "nobody yet"},
    ],
)
async def test_lead_gets_no_rights_by_a_new_key(server: Administered, fields: Json) -> None:
    """Neither a role, nor another team, nor the data of a user beyond the team."""
    await created(server, owner="ada", team="search")
    await created(server, owner="bob", team="sales")
    await created(server, owner="olga", team="search", roles=["operator"])
    for team in ("search", "sales"):
        await created(server, owner="both", team=team)
    status, answer = await server.ask(LEAD, "POST", PATH, {"name": "x", **fields})
    assert (status, answer["error"]["code"]) == (403, "insufficient_permissions")
    assert (await server.acts())[0] == ("api_key.created", "refused", None)


LIMITED_LEAD = Owner(
    "lea",
    {
        **LEAD.attributes,
        "keys": ["key_of_lea"],
        "limits": ["requests_per_minute=60", "budget_per_day=2.5"],
        "models": ["local/*", "other/small"],
    },
)


async def test_key_of_a_lead_has_the_limits_and_models_of_the_leads_own_key(server: Administered) -> None:
    await created(server, owner="ada", team="search")
    made = await created(server, LIMITED_LEAD, owner="ada")
    assert made["limits"] == {"requests_per_minute": 60, "budget_per_day": 2.5}
    assert made["models"] == ["local/*", "other/small"]
    fields: Json = {"limits": {"requests_per_minute": 5, "running": 2}, "models": ["local/qwen*", "other/small"]}
    less = await created(server, LIMITED_LEAD, owner="ada", **fields)
    assert less["limits"] == {"requests_per_minute": 5, "budget_per_day": 2.5, "running": 2}
    assert less["models"] == fields["models"]
    assert (await created(server, LEAD, owner="ada"))["limits"] == {}


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"limits": {"requests_per_minute": 61}}, "requests_per_minute 60"),
        ({"limits": {"budget_per_day": 2.6}}, "budget_per_day 2.5"),
        ({"models": ["*"]}, "local/*, other/small"),
        ({"models": ["local/a", "other/small2"]}, "local/*, other/small"),
        ({"models": ["other/small*"]}, "local/*, other/small"),
    ],
)
async def test_lead_cannot_create_a_key_with_more_than_their_own(
    server: Administered, fields: Json, bound: str
) -> None:
    await created(server, owner="ada", team="search")
    status, answer = await server.ask(LIMITED_LEAD, "POST", PATH, {"name": "x", "owner": "ada", **fields})
    assert (status, answer["error"]["code"]) == (403, "insufficient_permissions")
    assert f"({bound})" in answer["error"]["message"] or f"the models {bound})" in answer["error"]["message"]
    assert (await server.acts())[0] == ("api_key.created", "refused", None)


async def test_lead_whose_limits_are_unknown_cannot_create_a_key(server: Administered) -> None:
    lead = Owner("lea", {**LIMITED_LEAD.attributes, "limits": ["of_tomorrow=1"]})
    await created(server, owner="ada", team="search")
    status, answer = await server.ask(lead, "POST", PATH, {"name": "x", "owner": "ada"})
    assert (status, answer["error"]["code"]) == (403, "insufficient_permissions")


async def test_lead_cannot_take_over_a_key_with_a_role(server: Administered) -> None:
    of_operator = await created(server, owner="olga", team="search", roles=["operator"])
    path = f"{PATH}/{of_operator['id']}"
    assert (await server.ask(LEAD, "GET", path))[0] == 200
    assert (await server.ask(LEAD, "POST", f"{path}/rotate"))[0] == 403
    assert (await server.ask(LEAD, "DELETE", path))[0] == 403
    assert await AccessKeys(server.records).authenticate(of_operator["value"])


@pytest.mark.parametrize("beyond", [{"team": "sales"}, {"team": "search", "roles": ["operator"]}, {}])
async def test_lead_cannot_rotate_a_key_of_a_user_with_keys_beyond_the_team(server: Administered, beyond: Json) -> None:
    """The token would show what the user has stored with the other keys."""
    made = await created(server, owner="ada", team="search")
    await created(server, owner="ada", **beyond)
    status, answer = await server.ask(LEAD, "POST", f"{PATH}/{made['id']}/rotate", {"overlap_seconds": 0})
    assert (status, answer["error"]["code"]) == (403, "insufficient_permissions")
    assert (await server.acts())[0] == ("api_key.updated", "refused", made["id"])
    assert await AccessKeys(server.records).authenticate(made["value"])
    assert (await server.ask(LEAD, "DELETE", f"{PATH}/{made['id']}"))[0] == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 403),
        ({"limits": {"requests_per_minute": 60, "budget_per_day": 2.5}}, 403),
        ({"models": ["local/*"]}, 403),
        ({"limits": {"requests_per_minute": 61, "budget_per_day": 1}, "models": ["local/*"]}, 403),
        ({"limits": {"requests_per_minute": 60, "budget_per_day": 1}, "models": ["local/a", "*"]}, 403),
        ({"limits": {"requests_per_minute": 60, "budget_per_day": 1}, "models": ["local/a"]}, 200),
    ],
)
async def test_lead_rotates_keys_with_at_most_their_own_limits_and_models(
    server: Administered, fields: Json, status: int
) -> None:
    made = await created(server, owner="ada", team="search", **fields)
    assert (await server.ask(LIMITED_LEAD, "POST", f"{PATH}/{made['id']}/rotate"))[0] == status


async def test_keys_of_another_tenant_are_not_found(server: Administered) -> None:
    keys = AccessKeys(server.records)
    key, token = await keys.create(NewKey("theirs", Owner("ada", tenant="south"), "search"))
    assert (await server.ask(OPERATOR, "GET", PATH))[1]["data"] == []
    for method, rest in (("GET", ""), ("POST", "/rotate"), ("DELETE", "")):
        assert (await server.ask(OPERATOR, method, f"{PATH}/{key.id}{rest}"))[0] == 404
    assert await keys.authenticate(token)


@pytest.mark.parametrize("settings", [{"roles": {}}, {"keys": None}])
async def test_routes_need_keys_and_operators(settings: Json) -> None:
    async with administered(**settings) as server:
        assert (await server.ask(OPERATOR, "GET", PATH))[0] == 404


async def test_audit_log_has_what_was_done_with_a_key_by_its_id(server: Administered) -> None:
    """Neither a rotation of a revoked key, nor one with a wrong body, nor a second revocation."""
    key = (await created(server, owner="ada"))["id"]
    path = f"{PATH}/{key}"
    assert (await server.ask(OPERATOR, "POST", f"{path}/rotate", {"overlap_seconds": -1}))[0] == 400
    assert [(await server.ask(OPERATOR, "DELETE", path))[0] for _ in range(2)] == [200, 200]
    assert (await server.ask(OPERATOR, "POST", f"{path}/rotate"))[0] == 400
    assert await server.acts() == [("api_key.deleted", "allowed", key), ("api_key.created", "allowed", key)]
