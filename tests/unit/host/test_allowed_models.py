"""The models of a key, by llama-stack's own check of access."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llama_stack.core.access_control.access_control import is_action_allowed
from llama_stack.core.access_control.datatypes import AccessRule
from llama_stack.core.datatypes import ModelWithOwner, User
from llama_stack.core.request_headers import RequestProviderDataContext

from llama_stack_responses.host.allowed_models import limit_models, may_use


def table(*policy: AccessRule) -> Any:
    made = SimpleNamespace(policy=list(policy))
    limit_models(made)
    return made


def usable(table: Any, name: str, **attributes: list[str]) -> bool:
    """Return whether a user may read this model, by the host and by this package, which have to agree."""
    user = User("ada", attributes)
    provider, _, of_provider = name.partition("/")
    model = ModelWithOwner(identifier=name, provider_id=provider, provider_resource_id=of_provider, metadata={})
    with RequestProviderDataContext({}, user):
        found: bool = is_action_allowed(table.policy, "read", model, user)
        if not table.policy[0].forbid:
            assert may_use(table, name) == found
    return found


def test_models_of_a_key_are_the_only_ones() -> None:
    models = ["local/a", "other/*"]
    of_table = table()
    names = [
        "local/a",
        "other/",
        "other/b",
        "other/b/c",
        "local/ab",
        "local/A",
        "a",
        "local/a\n",
        "xlocal/a",
        "another/b",
    ]
    assert [name for name in names if usable(of_table, name, models=models)] == names[:4]


@pytest.mark.parametrize("name", ["local/a", "anything"])
def test_key_without_models_may_use_all(name: str) -> None:
    assert usable(table(), name, teams=["search"])


def test_characters_of_patterns_are_characters() -> None:
    of_table = table()
    assert usable(of_table, "local/a.b", models=["local/a.b"])
    assert not usable(of_table, "local/axb", models=["local/a.b"])
    assert not usable(of_table, "local/b", models=["local/a|local/b"])


def test_rules_of_the_stack_apply_too() -> None:
    forbid = AccessRule(forbid={"actions": ["read"], "resource": "model::local/secret"})
    permit = AccessRule(permit={"actions": ["read"]})
    of_table = table(forbid, permit)
    assert not usable(of_table, "local/secret", models=["local/*"])
    assert usable(of_table, "local/open", models=["local/*"])
    assert not usable(of_table, "other/open", models=["local/*"])


def test_request_without_user_is_not_limited() -> None:
    assert may_use(table(), "local/a")
    assert may_use(None, "local/a")
