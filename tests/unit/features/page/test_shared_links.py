"""Links with which anyone reads one response: who makes them, what they show, and when they end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.shared_links import routes
from llama_stack_responses.store.layout import links_of
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Records
from tests.support.administration import ADA, BOB, OPERATOR, Administered, administered
from tests.support.shapes import differences
from tests.support.snippet_programs import LINKS
from tests.support.snippets import blocks

Json = dict[str, Any]

PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-robots-tag": "noindex, nofollow"}
UNKNOWN = f"resp_{'0' * 24}"
HOUR: Json = json.loads(blocks()[LINKS[0]].text)


@pytest.fixture
async def server() -> AsyncIterator[Administered]:
    async with administered() as made:
        yield made


async def link_to(server: Administered, response_id: str, user: Owner = ADA, **fields: Any) -> str:
    """Make a link, and return its token."""
    status, made = await server.ask(user, "POST", f"/ui/responses/{response_id}/links", HOUR | fields)
    assert status == 200, made
    return str(made["path"]).removeprefix("/ui/shared#")


async def read(server: Administered, token: str) -> tuple[int, Json]:
    """Read a response by a link, without a user."""
    return await server.ask(None, "GET", "/ui/shared", headers={"x-shared-link": token})


async def test_link_shows_its_response_alone_without_a_user(server: Administered) -> None:
    first = await server.respond(ADA, input="The first secret")
    shared = await server.respond(
        ADA, input="Hi", previous_response_id=first["id"], safety_identifier="u1", metadata={"team": "x"}
    )
    later = await server.respond(ADA, input="Later", previous_response_id=shared["id"])
    assert (await server.ask(ADA, "POST", f"/responses/{shared['id']}/score", {"score": 0, "note": "mine"}))[0] == 200
    status, view = await read(server, await link_to(server, shared["id"]))
    assert status == 200
    own = (await server.ask(ADA, "GET", f"/ui/responses/{shared['id']}"))[1]
    assert view["items"] == own["items"]
    assert view["facts"]["metadata"] == {"team": "x"}
    assert (own["continued_by"][0]["id"], own["score"]["note"]) == (later["id"], "mine")
    said = json.dumps(view)
    for hidden in (first["id"], later["id"], "first secret", "mine", '"ada"', '"u1"'):
        assert hidden not in said, hidden


async def test_link_opens_nothing_else(server: Administered) -> None:
    response = await server.respond(ADA)
    token = await link_to(server, response["id"])
    for path in (f"/responses/{response['id']}", f"/ui/responses/{response['id']}", "/ui/responses"):
        for headers in ({"x-shared-link": token}, {"authorization": f"Bearer {token}"}):
            status, answer = await server.ask(BOB, "GET", path, headers=headers)
            assert status == 404 or answer["data"] == []


@pytest.mark.parametrize("token", ["", "x", "ä", "A" * 600, "AAAA" * 60])
async def test_wrong_token_leads_nowhere(server: Administered, token: str) -> None:
    status, answer = await read(server, token.encode("ascii", "replace").decode())
    assert (status, answer["error"]["code"]) == (404, "invalid_link")
    assert PRIVATE.items() <= server.headers.items()


async def test_changed_token_and_one_of_another_store_lead_nowhere(server: Administered) -> None:
    response = await server.respond(ADA)
    token = await link_to(server, response["id"])
    for at in (3, 40, len(token) - 6):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert (await read(server, changed))[1]["error"]["code"] == "invalid_link"
    async with administered() as other:
        assert (await read(other, token))[1]["error"]["code"] == "invalid_link"


async def test_only_owner_and_operators_make_list_and_revoke_links(server: Administered) -> None:
    response = await server.respond(ADA)
    path, of_all = f"/ui/responses/{response['id']}/links", f"/admin/links/{response['id']}"
    for method, body in (("GET", None), ("POST", HOUR), ("DELETE", None)):
        for user in (BOB, OPERATOR, None):
            assert (await server.ask(user, method, path, body))[0] == 404
        for user in (ADA, BOB, None):
            assert (await server.ask(user, method, of_all, body))[0] == 403
        assert (await server.ask(ADA, method, f"/ui/responses/{UNKNOWN}/links", body))[0] == 404
        assert (await server.ask(OPERATOR, method, f"/admin/links/{UNKNOWN}", body))[0] == 404
    status, made = await server.ask(OPERATOR, "POST", of_all, HOUR)
    assert (status, made["by"], made["expires_at"] - made["created_at"]) == (200, "olga", 3600)
    assert list(differences(json.loads(blocks()[LINKS[1]].text), made)) == []
    listed = (await server.ask(ADA, "GET", path))[1]["data"]
    assert listed == [{name: value for name, value in made.items() if name != "path"}]


async def test_making_using_and_revoking_is_in_the_audit_log(server: Administered) -> None:
    response = await server.respond(ADA)
    token = await link_to(server, response["id"])
    assert (await read(server, token))[0] == 200
    path = f"/ui/responses/{response['id']}/links"
    [link] = (await server.ask(ADA, "GET", path))[1]["data"]
    assert (await server.ask(ADA, "DELETE", path))[1]["deleted"]
    assert [act for act in await server.acts() if act[0].startswith("link.")] == [
        (f"link.{done}", "allowed", response["id"]) for done in ("deleted", "used", "created")
    ]
    used = [each async for each in server.log.entries() if each["type"] == "link.used"]
    assert used[0]["actor"]["session"]["user"]["id"] == link["id"]
    assert (await read(server, token))[1]["error"]["code"] == "invalid_link"
    assert (await server.ask(ADA, "GET", path))[1]["data"] == []


async def test_link_ends_with_its_response(server: Administered) -> None:
    response = await server.respond(ADA)
    token = await link_to(server, response["id"])
    assert await server.records.get_many([links_of(response["id"])])
    assert (await server.ask(ADA, "DELETE", f"/responses/{response['id']}"))[0] == 200
    assert (await read(server, token))[1]["error"]["code"] == "invalid_link"
    assert not await server.records.get_many([links_of(response["id"])])


class LaterRecords:
    """A store whose clock is a test's.

    Attributes:
        seconds: by how much it is ahead.
    """

    def __init__(self) -> None:
        self._records: Any = MemoryRecords()
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def now(self) -> float:
        return float(await self._records.now()) + self.seconds


async def test_link_expires() -> None:
    records: Any = LaterRecords()
    typed: Records = records
    async with administered(typed) as server:
        response = await server.respond(ADA)
        short, long = [await link_to(server, response["id"], expires_in_seconds=each) for each in (60, 604_800)]
        records.seconds = 61
        assert (await read(server, short))[1]["error"]["code"] == "link_expired"
        assert (await read(server, long))[0] == 200
        assert len((await server.ask(ADA, "GET", f"/ui/responses/{response['id']}/links"))[1]["data"]) == 1
        records.seconds = 604_801
        assert (await read(server, long))[1]["error"]["code"] == "link_expired"


async def test_link_is_used_a_bounded_number_of_times_in_a_minute(
    server: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_USES", 2)
    response = await server.respond(ADA)
    token, other = [await link_to(server, response["id"]) for _ in range(2)]
    assert [(await read(server, token))[0] for _ in range(4)] == [200, 200, 429, 429]
    assert {"retry-after", *PRIVATE} <= server.headers.keys()
    assert (await read(server, other))[0] == 200
    assert len([act for act in await server.acts() if act[0] == "link.used"]) == 3


async def test_number_of_links_and_their_time_are_bounded(server: Administered) -> None:
    response = await server.respond(ADA)
    path = f"/ui/responses/{response['id']}/links"
    for seconds in (59, 7 * 86_400 + 1, "3600", None):
        status, answer = await server.ask(ADA, "POST", path, {"expires_in_seconds": seconds})
        assert (status, answer["error"]["param"]) == (400, "expires_in_seconds")
    statuses = [(await server.ask(ADA, "POST", path, HOUR))[0] for _ in range(21)]
    assert statuses == [200] * 20 + [400]


async def test_there_are_no_links_if_they_are_turned_off() -> None:
    async with administered(ui={"link_days": 0}) as server:
        response = await server.respond(ADA)
        assert (await server.ask(ADA, "POST", f"/ui/responses/{response['id']}/links", HOUR))[0] == 404
        assert (await read(server, "x"))[0] == 404
        assert (await server.ask(ADA, "GET", "/ui/session"))[1]["link_seconds"] == 0
