"""What the page gets of the responses of all owners, for operators only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llama_stack_responses.core.owner import Owner
from tests.support.administration import ADA, BOB, LEAD, OPERATOR, Administered, administered

UNKNOWN = f"resp_{'0' * 24}"


@pytest.fixture
async def server() -> AsyncIterator[Administered]:
    async with administered() as made:
        yield made


async def test_operator_lists_all_and_one_with_filters(server: Administered) -> None:
    made = {}
    for number, user in enumerate((ADA, BOB, ADA, BOB, OPERATOR)):
        response = await server.respond(user, input=f"question {number}", metadata={"number": str(number)})
        made[response["id"]] = user.principal
    page = (await server.ask(OPERATOR, "GET", "/admin/ui/responses?limit=3"))[1]
    rest = (await server.ask(OPERATOR, "GET", f"/admin/ui/responses?after={page['next']}"))[1]
    rows = page["data"] + rest["data"]
    assert {row["id"]: row["owner"]["name"] for row in rows} == made
    assert len(page["data"]) == 3
    for query, numbers in {
        "owner=bob": {"1", "3"},
        "owner=bob&metadata=number:1": {"1"},
        "metadata=number:2": {"2"},
        "text=question%203": {"3"},
        "owner=ada&text=question%203": set(),
        "owner=nobody": set(),
        "status=refused": set(),
        "status=completed&text=score:any": set(),
    }.items():
        status, found = await server.ask(OPERATOR, "GET", f"/admin/ui/responses?{query}")
        assert status == 200, found
        assert {row["metadata"]["number"] for row in found["data"]} == numbers, query
    listed = [each async for each in server.log.entries() if each["type"] == "response.listed"]
    assert len(listed) == 10


async def test_score_is_shown_and_filtered(server: Administered) -> None:
    first, _ = await server.respond(ADA), await server.respond(BOB)
    await server.ask(ADA, "POST", f"/responses/{first['id']}/score", {"score": 1, "note": "Good."})
    for query in ("", "owner=ada&"):
        found = (await server.ask(OPERATOR, "GET", f"/admin/ui/responses?{query}text=score:good"))[1]["data"]
        assert [(row["id"], row["score"]["note"]) for row in found] == [(first["id"], "Good.")]
    shown = (await server.ask(OPERATOR, "GET", f"/admin/ui/responses/{first['id']}"))[1]
    assert shown["score"]["note"] == "Good."


async def test_view_is_that_of_the_owner_and_is_written(server: Administered) -> None:
    first = await server.respond(ADA)
    response = await server.respond(ADA, previous_response_id=first["id"])
    own = (await server.ask(ADA, "GET", f"/ui/responses/{first['id']}"))[1]
    assert (await server.ask(OPERATOR, "GET", f"/admin/ui/responses/{first['id']}")) == (200, own)
    assert own["owner"]["name"] == "ada"
    assert [each["id"] for each in own["continued_by"]] == [response["id"]]
    assert (await server.ask(OPERATOR, "GET", f"/admin/ui/responses/{UNKNOWN}"))[0] == 404
    assert await server.acts() == [
        ("response.read", "refused", UNKNOWN),
        ("response.read", "allowed", first["id"]),
    ]


@pytest.mark.parametrize("user", [ADA, LEAD, None, Owner("x", {"roles": ["Operator"]})])
async def test_others_are_refused(server: Administered, user: Owner | None) -> None:
    response = await server.respond(ADA)
    for path in ("/admin/ui/responses", "/admin/ui/responses?owner=ada", f"/admin/ui/responses/{response['id']}"):
        assert (await server.ask(user, "GET", path))[0] == 403
    assert {outcome for _, outcome, _ in await server.acts()} == {"refused"}
    assert (await server.ask(user, "GET", "/ui/session"))[1]["operator"] is False


async def test_only_a_server_with_operators_has_the_routes() -> None:
    async with administered(roles={"team_lead": {"roles": ["lead"]}}) as server:
        assert (await server.ask(OPERATOR, "GET", "/ui/session"))[1]["operator"] is False
        assert (await server.ask(OPERATOR, "GET", "/admin/ui/responses"))[0] == 404
    async with administered() as server:
        assert (await server.ask(OPERATOR, "GET", "/ui/session"))[1]["operator"] is True
