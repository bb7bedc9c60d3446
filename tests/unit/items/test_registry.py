"""Each kind of item and each type of tool is brought once: by the core or by one feature."""

from __future__ import annotations

from llama_stack_responses.core.discovery import feature_names, modules_of_features
from llama_stack_responses.items.registry import CORE_KINDS, ITEM_KINDS, TOOL_TYPES
from llama_stack_responses.stream.call_kinds import FORMS


def test_every_kind_is_brought_once() -> None:
    brought = [module.KINDS for module in modules_of_features("kinds").values()]
    of_features = [kind.form.type for kinds in brought for kind in kinds.items]
    assert sorted(of_features + [kind.form.type for kind in CORE_KINDS]) == sorted(ITEM_KINDS)
    assert sorted(tool.type for kinds in brought for tool in kinds.tools) == sorted(TOOL_TYPES)
    assert all(FORMS.get(name, kind.form) is kind.form for name, kind in ITEM_KINDS.items())


def test_module_that_only_some_features_have_is_found_there() -> None:
    assert modules_of_features("kinds").keys() < set(feature_names())
    assert modules_of_features("kinds_of_nothing") == {}


def test_every_kind_checks_what_clients_send() -> None:
    assert [name for name, kind in ITEM_KINDS.items() if bool(kind.check) == bool(kind.carrier)] == []
