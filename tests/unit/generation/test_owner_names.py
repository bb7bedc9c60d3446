"""The owner in log lines and spans, by the setting `log_owner`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.generation.owner_names import LogOwner, name_owner
from llama_stack_responses.logs import about, known
from tests.support.exported_telemetry import ExportedTelemetry
from tests.unit.telemetry.test_telemetry import begun

ADA = Owner("ada", {"teams": ["search"]})


@pytest.mark.parametrize(
    ("setting", "owner", "named"),
    [
        ("off", ADA, {}),
        ("named", ADA, {"owner": "ada"}),
        ("named", Owner("ada", tenant="blue"), {"owner": "ada (blue)"}),
        ("named", Owner("a\nb\x1b[31m"), {"owner": "a?b?[31m"}),
        ("named", Owner("x" * 1000), {"owner": "x" * 200}),
        ("named", ANONYMOUS, {}),
        ("hashed", ANONYMOUS, {}),
    ],
)
def test_owner_is_named_as_configured(setting: LogOwner, owner: Owner, named: Mapping[str, str]) -> None:
    assert name_owner(setting)(owner) == named


def test_hash_differs_between_owners_and_does_not_contain_the_name() -> None:
    hashed = name_owner("hashed")
    names = [hashed(owner)["owner"] for owner in (ADA, Owner("grace"), Owner("ada", tenant="blue"))]
    assert len(set(names)) == 3
    assert hashed(Owner("ada", {"teams": []})) == {"owner": names[0]}
    assert not any("ada" in name for name in names)


def test_owner_is_left_out_by_default() -> None:
    assert ResponsesConfig().log_owner == "off"


def test_span_of_response_has_the_owner_of_its_log_lines() -> None:
    watched = ExportedTelemetry()
    with about(**name_owner("named")(ADA)), watched.telemetry.response(begun()):
        assert known("owner") == "ada"
    with watched.telemetry.response(begun()):
        pass
    assert [span.attributes.get("llama_stack_responses.owner") for span in watched.spans] == ["ada", None]
