"""The owner of a record, as the caller of a request."""

from __future__ import annotations

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner


def test_owner_with_attributes_has_team_key_and_roles() -> None:
    owner = Owner("ada", {"teams": ["search", "all"], "keys": ["key_1"], "roles": ["lead", "admin"]})

    assert (owner.team, owner.key, list(owner.roles)) == ("search", "key_1", ["lead", "admin"])


@pytest.mark.parametrize("owner", [ANONYMOUS, Owner("ada"), Owner("ada", {"teams": [], "keys": [], "roles": []})])
def test_owner_without_attributes_has_no_team_key_or_role(owner: Owner) -> None:
    assert (owner.team, owner.key, list(owner.roles)) == ("", "", [])


def test_owner_stored_and_read_back_keeps_team_key_and_roles() -> None:
    stored = Owner("ada", {"teams": ["search"], "keys": ["key_1"], "roles": ["lead"]}, "acme").encode()

    assert Owner(*stored) == Owner("ada", {"teams": ["search"], "keys": ["key_1"], "roles": ["lead"]}, "acme")
