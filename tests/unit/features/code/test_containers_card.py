"""The card of the live view with the containers of a user."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from llama_stack_responses.config.roles import Roles
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.code.containers.containers_card import containers_card
from llama_stack_responses.features.code.containers.entries import ContainerEntry, Containers

ALICE: Final = Owner("alice", {"roles": ["user"]})
BOB: Final = Owner("bob", {"roles": ["user"]})
ADMIN: Final = Owner("admin", {"roles": ["admin"]})
ROLES: Final = Roles(operator={"roles": ["admin"]})


def entry(name: str, owner: Owner, users: int) -> ContainerEntry:
    now = time.time()
    part = cast("Any", None)
    return ContainerEntry(f"cntr_{name}", name, owner, int(now) - 120, 600.0, part, now - 61, part, users=users)


async def sections(user: Owner, *entries: ContainerEntry) -> list[dict[str, Any]]:
    here = SimpleNamespace(
        all=lambda: list(entries), of=lambda owner: [each for each in entries if each.owner == owner]
    )
    return list(await containers_card(cast("Containers", here), ROLES, lambda: user).sections())


async def test_user_sees_own_containers_only() -> None:
    [section] = await sections(ALICE, entry("mine", ALICE, 1), entry("idle", ALICE, 0), entry("his", BOB, 0))
    assert section["facts"] == ["2 containers, 1 in use"]
    assert section["rows"] == [
        ["cntr_mine", "mine", "in use", "2 min ago", "after its use"],
        ["cntr_idle", "idle", "idle for 1 min", "2 min ago", "in 8 min"],
    ]


async def test_operator_sees_how_many_all_users_have_and_no_names() -> None:
    [section] = await sections(ADMIN, entry("mine", ALICE, 1), entry("his", BOB, 0))
    assert section["facts"] == ["all users: 2 containers, 1 in use"]
    assert section["rows"] == []


@pytest.mark.parametrize("user", [ALICE, ADMIN, ANONYMOUS])
async def test_there_is_no_section_without_containers(user: Owner) -> None:
    assert await sections(user) == []


async def test_user_without_containers_is_not_told_of_those_of_others() -> None:
    assert await sections(BOB, entry("mine", ALICE, 1)) == []
