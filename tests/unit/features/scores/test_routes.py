"""Who may read and write scores, and what they may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.scores.stored import open_store
from llama_stack_responses.store.decoder import Decoder
from tests.support.administration import ADA, BOB, LEAD, OPERATOR, Administered, administered

HOSTILE = "<script>alert(1)</script>\u202e\n=HYPERLINK()"


@pytest.fixture
async def server() -> AsyncIterator[Administered]:
    async with administered() as made:
        yield made


async def scored(server: Administered, user: Owner = ADA, **fields: Any) -> str:
    """Create a response of a user, score it, and return its id."""
    response_id = str((await server.respond(user))["id"])
    status, answer = await server.ask(user, "POST", f"/responses/{response_id}/score", fields)
    assert status == 200, answer
    return response_id


async def test_score_is_written_read_replaced_and_deleted(server: Administered) -> None:
    response_id = await scored(server, score=0.25, note=HOSTILE)
    path = f"/responses/{response_id}/score"
    status, found = await server.ask(ADA, "GET", path)
    at = found.pop("at")
    assert (status, found) == (
        200,
        {"object": "response.score", "response_id": response_id, "score": 0.25, "note": HOSTILE, "by": "ada"},
    )
    assert isinstance(at, int)
    assert (await server.ask(ADA, "POST", path, {"score": 1}))[1]["note"] == ""
    assert (await server.ask(ADA, "POST", path, {"note": "x", "score": None}))[1]["score"] is None
    assert (await server.ask(ADA, "DELETE", path))[1] == {
        "id": response_id,
        "object": "response.score.deleted",
        "deleted": True,
    }
    assert (await server.ask(ADA, "GET", path))[0] == 404
    assert (await server.ask(ADA, "DELETE", path))[0] == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "score"),
        ({"note": ""}, "score"),
        ({"score": 1.1}, "score"),
        ({"score": -0.1}, "score"),
        ({"score": "good"}, "score"),
        ({"score": True}, "score"),
        ({"score": 1, "note": "x" * 1001}, "note"),
        ({"score": 1, "note": 5}, "note"),
        ({"score": 1, "by": "bob"}, "by"),
    ],
)
async def test_wrong_score_is_refused_with_its_field(server: Administered, body: Json, param: str) -> None:
    response_id = (await server.respond(ADA))["id"]
    status, answer = await server.ask(ADA, "POST", f"/responses/{response_id}/score", body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_score_of_others_and_of_nothing_is_not_found(server: Administered) -> None:
    response_id = await scored(server, score=1)
    for user, which in ((BOB, response_id), (OPERATOR, response_id), (ADA, f"resp_{'0' * 24}")):
        for method, body in (("GET", None), ("POST", {"score": 0}), ("DELETE", None)):
            assert (await server.ask(user, method, f"/responses/{which}/score", body))[0] == 404
    assert (await server.ask(ADA, "GET", f"/responses/{response_id}/score"))[1]["score"] == 1


async def test_operator_scores_for_others_and_it_is_in_the_audit_log(server: Administered) -> None:
    response_id = await scored(server, score=1)
    path = f"/admin/scores/{response_id}"
    for user in (ADA, LEAD, None):
        for method, body in (("GET", None), ("POST", {"score": 0}), ("DELETE", None)):
            assert (await server.ask(user, method, path, body))[0] == 403
    assert (await server.ask(OPERATOR, "POST", path, {"score": 0}))[1]["by"] == "olga"
    assert (await server.ask(OPERATOR, "GET", path))[1]["score"] == 0
    assert (await server.ask(ADA, "GET", f"/responses/{response_id}/score"))[1]["by"] == "olga"
    assert (await server.ask(OPERATOR, "DELETE", path))[0] == 200
    assert (await server.ask(OPERATOR, "GET", f"/admin/scores/resp_{'0' * 24}"))[0] == 404
    acts = [act for act in await server.acts() if act[1] == "allowed"]
    assert acts == [(f"score.{done}", "allowed", response_id) for done in ("deleted", "read", "updated")]
    assert ("score.read", "refused", f"resp_{'0' * 24}") in await server.acts()


async def test_routes_of_operators_are_absent_without_operators() -> None:
    async with administered(roles={}, keys=None) as server:
        response_id = await scored(server, score=1)
        assert (await server.ask(ADA, "GET", f"/admin/scores/{response_id}"))[0] == 404


async def test_scores_of_an_owner_are_exported_and_deleted(server: Administered) -> None:
    ids = [await scored(server, score=1, note=HOSTILE) for _ in range(2)]
    others = await scored(server, BOB, score=0)
    store = open_store(server.records, Decoder())
    assert sorted([each async for each in store.ids_of(ADA)]) == sorted(ids)
    exported = [each.fields async for each in store.export(ADA)]
    assert {each["note"] for each in exported} == {HOSTILE}
    await store.delete(ADA, ids[0])
    assert [each async for each in store.ids_of(ADA)] == [ids[1]]
    with pytest.raises(Exception, match="not found"):
        await store.delete(ADA, others)
    assert [each async for each in store.ids_of(BOB)] == [others]
