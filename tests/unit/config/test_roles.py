"""Which attributes make an operator, and who leads a team."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.config.roles import Roles
from llama_stack_responses.core.owner import ANONYMOUS, Owner

ROLES = Roles(operator={"roles": ["operator", "root"], "groups": ["ops"]}, team_lead={"roles": ["lead"]})


@pytest.mark.parametrize(
    ("attributes", "is_operator"),
    [
        ({"roles": ["operator"]}, True),
        ({"roles": ["user", "root"]}, True),
        ({"groups": ["ops"]}, True),
        ({}, False),
        ({"roles": []}, False),
        ({"roles": ["ops"]}, False),
        ({"groups": ["operator"]}, False),
        ({"roles": ["Operator"]}, False),
        ({"roles": ["operator "]}, False),
    ],
)
def test_operator_has_one_value_of_one_attribute(attributes: Any, is_operator: bool) -> None:
    assert ROLES.is_operator(Owner("olga", attributes)) == is_operator
    assert not ROLES.is_operator(Owner("", attributes))
    assert not Roles().is_operator(Owner("olga", attributes))


def test_lead_needs_a_team() -> None:
    assert ROLES.leads(Owner("lea", {"roles": ["lead"], "teams": ["search", "sales"]})) == "search"
    assert ROLES.leads(Owner("lea", {"roles": ["lead"]})) == ""
    assert ROLES.leads(Owner("ada", {"teams": ["search"]})) == ""


def test_nobody_has_a_role_by_default() -> None:
    assert not Roles().any
    assert ROLES.any
    assert not Roles().is_operator(ANONYMOUS)


@pytest.mark.parametrize(
    "wrong", [{"operator": "roles"}, {"operator": {"roles": "operator"}}, {"audit_days": 0}, {"admin": {}}]
)
def test_wrong_roles_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        Roles(**wrong)
