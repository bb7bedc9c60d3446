"""The checks that requests ask for, the texts that they check, and their combined result."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai.types.responses.response import Moderation
from pydantic import TypeAdapter

from llama_stack_responses.core.moderation_results import NO_OUTPUT, NOT_YET, result
from llama_stack_responses.features.moderation.policy import Policy, policy_of
from llama_stack_responses.features.moderation.results import failure, merged, refusal
from llama_stack_responses.features.moderation.texts import input_texts, output_texts
from llama_stack_responses.items.form import ItemForm
from llama_stack_responses.items.kind import ItemKind
from llama_stack_responses.items.registry import ITEM_KINDS
from llama_stack_responses.items.view import CallView
from llama_stack_responses.requests.request import parse_create
from tests.support.input_items import NO, call_output, called, message
from tests.support.moderation import AWAY

Json = dict[str, Any]

SAFE: Final = result("m", {"hate": 0.1}, flagged=False)
UNSAFE: Final = result("n", {"hate": 0.05, "violence": 0.9}, True, ["violence"])


def policy_for(**fields: Any) -> Policy | None:
    return policy_of(parse_create({"model": "m", "input": "hi", **fields}))


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, None),
        ({"moderation": None, "guardrails": []}, None),
        ({"moderation": {"model": "m"}}, Policy("moderation", ["m"], "score", "score")),
        ({"moderation": {"model": "m", "policy": None}}, Policy("moderation", ["m"], "score", "score")),
        (
            {"moderation": {"model": "m", "policy": {"input": {"mode": "block"}, "output": None}}},
            Policy("moderation", ["m"], "block", "score"),
        ),
        (
            {"moderation": {"model": "m", "policy": {"output": {"mode": "block"}}}},
            Policy("moderation", ["m"], "score", "block"),
        ),
        ({"guardrails": ["a", "b"]}, Policy("guardrails", ["a", "b"], "block", "block")),
        ({"guardrails": True}, Policy("guardrails", [None], "block", "block")),
    ],
)
def test_moderation_policy_is_read_from_request(fields: Json, policy: Policy | None) -> None:
    assert policy_for(**fields) == policy


@pytest.mark.parametrize("one", [SAFE, UNSAFE, merged([SAFE, UNSAFE]), failure(AWAY), NOT_YET, NO_OUTPUT])
def test_moderation_results_match_openai_types(one: Json) -> None:
    both = {"input": one, "output": one}
    assert TypeAdapter(Moderation).validate_python(both, strict=True).model_dump() == both


def test_results_of_several_checks_are_merged() -> None:
    together = merged([SAFE, UNSAFE, SAFE])
    assert (together["flagged"], together["model"]) == (True, "m, n")
    assert together["category_scores"] == {"hate": 0.1, "violence": 0.9}
    assert together["categories"] == {"hate": False, "violence": True}
    assert merged([SAFE, SAFE]) == SAFE


def test_flagged_category_without_score_gets_one() -> None:
    assert result("m", {}, True, ["S1"])["category_scores"] == {"S1": 1.0}


def test_refusal_names_categories() -> None:
    assert refusal("input", UNSAFE) == "This request was blocked: its input was flagged by the moderation (violence)."
    assert refusal("output", result("m", {}, flagged=True)).endswith("was flagged by the moderation.")


# Texts


def test_texts_of_input_are_checked() -> None:
    shell = {"type": "shell_call_output", "call_id": "2", "output": [{"stdout": "out", "stderr": "err", "outcome": {}}]}
    image = {"type": "input_image", "image_url": "data:image/png;base64,bad"}
    items = [
        message("system", "Be kind."),
        message("user", "hi"),
        {"type": "message", "role": "user", "content": [image, {"type": "input_text", "text": " "}]},
        called("1"),
        call_output("1", [{"type": "input_text", "text": "Snow."}, image]),
        shell,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
    ]
    request = parse_create({"model": "m", "input": "hi"})
    assert input_texts(request, items) == ["Be kind.", "hi", "Snow.", "out", "err"]
    assert input_texts(request, [*items, message("user", "bad"), NO, message("user", "so")])[-2:] == ["err", "so"]


def test_texts_of_prompt_variables_are_checked() -> None:
    variables = {"a": "Ada", "b": {"type": "input_text", "text": "Ben"}, "c": {"type": "input_image", "file_id": "f"}}
    request = parse_create({"model": "m", "prompt": {"id": "p", "variables": variables}})
    assert input_texts(request, []) == ["Ada", "Ben"]


def test_texts_of_output_are_checked() -> None:
    thought = {"summary": [{"type": "summary_text", "text": "Short."}], "content": [{"text": "Long."}]}
    output = [
        {"type": "reasoning", "encrypted_content": "x", **thought},
        message("assistant", "Hello"),
        called("1"),
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "abc"},
        {"type": "code_interpreter_call", "code": "print(1)", "outputs": [{"type": "logs", "logs": "1"}]},
    ]
    assert output_texts(output) == ["Long.", "Short.", "Hello", '{"a":1}', "abc", "print(1)"]


@pytest.mark.parametrize("kind", [kind for kind in ITEM_KINDS.values() if isinstance(kind.view, CallView)])
def test_kind_of_call_names_what_the_model_wrote(kind: ItemKind) -> None:
    assert kind.written
    if isinstance(kind.form, ItemForm) and kind.form.streamed:
        assert kind.form.streamed.key in kind.written


@pytest.mark.parametrize(
    ("called", "texts"),
    [
        (
            {"type": "web_search_call", "action": {"type": "search", "query": "otters", "sources": [{"url": "a"}]}},
            ["otters"],
        ),
        ({"type": "web_search_call", "action": {"type": "find_in_page", "url": "b", "pattern": "c"}}, ["b", "c"]),
        ({"type": "file_search_call", "queries": ["d", "e"], "results": [{"text": "f"}]}, ["d", "e"]),
        ({"type": "image_generation_call", "revised_prompt": "An otter", "result": "AAAA"}, ["An otter"]),
        ({"type": "shell_call", "action": {"commands": ["ls", "rm a"], "timeout_ms": 1}}, ["ls", "rm a"]),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"], "env": {}}}, ["ls", "-l"]),
        (
            {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a.py", "diff": "+x"}},
            ["a.py", "+x"],
        ),
        ({"type": "computer_call", "actions": [{"type": "type", "text": "hi"}]}, ["hi"]),
        ({"type": "program", "code": "return 1", "fingerprint": "x"}, ["return 1"]),
        ({"type": "program_output", "result": "1"}, []),
        ({"type": "tool_search_call", "arguments": {"goal": "find", "limits": [{"size": "s"}]}}, ["find", "s"]),
        ({"type": "mcp_approval_request", "arguments": '{"a":1}'}, ['{"a":1}']),
        ({"type": "unknown_call", "arguments": "a"}, []),
    ],
)
def test_arguments_of_calls_of_every_kind_are_checked(called: Json, texts: list[str]) -> None:
    assert output_texts([called]) == texts
