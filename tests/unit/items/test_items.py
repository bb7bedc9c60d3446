"""Every form in which clients send items, and the single form in which they are stored."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from openai.types.responses import ResponseInputItem, ResponseInputItemParam, ResponseItem
from openai.types.responses.response_code_interpreter_tool_call_param import ResponseCodeInterpreterToolCallParam
from openai.types.responses.response_compaction_item_param_param import ResponseCompactionItemParamParam
from openai.types.responses.response_computer_tool_call_param import ResponseComputerToolCallParam
from openai.types.responses.response_configuration_update_item_param_param import (
    ResponseConfigurationUpdateItemParamParam,
)
from openai.types.responses.response_custom_tool_call_output_param import ResponseCustomToolCallOutputParam
from openai.types.responses.response_custom_tool_call_param import ResponseCustomToolCallParam
from openai.types.responses.response_file_search_tool_call_param import ResponseFileSearchToolCallParam
from openai.types.responses.response_function_tool_call_param import ResponseFunctionToolCallParam
from openai.types.responses.response_function_web_search_param import ResponseFunctionWebSearchParam
from openai.types.responses.response_input_audio_param import ResponseInputAudioParam
from openai.types.responses.response_input_file_param import ResponseInputFileParam
from openai.types.responses.response_input_image_param import ResponseInputImageParam
from openai.types.responses.response_input_item_param import (
    AdditionalTools,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    ComputerCallOutput,
    FunctionCallOutput,
    ImageGenerationCall,
    ItemReference,
    LocalShellCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Program,
    ProgramOutput,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
)
from openai.types.responses.response_input_text_param import ResponseInputTextParam
from openai.types.responses.response_output_message_param import ResponseOutputMessageParam
from openai.types.responses.response_output_refusal_param import ResponseOutputRefusalParam
from openai.types.responses.response_output_text_param import ResponseOutputTextParam
from openai.types.responses.response_reasoning_item_param import ResponseReasoningItemParam
from openai.types.responses.response_tool_search_output_item_param_param import ResponseToolSearchOutputItemParamParam
from pydantic import TypeAdapter

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import RequestLimits
from llama_stack_responses.items.call_pairs import check_call_pairs, with_call_ids
from llama_stack_responses.items.listed_items import listed, with_ids
from llama_stack_responses.items.registry import ANSWERS, JOINABLE
from llama_stack_responses.requests.input_items import check_ids, parse_input
from tests.support.conform import problems
from tests.support.one_pixel import ONE_PIXEL

Json = dict[str, Any]

BREAKPOINT: Json = {"mode": "explicit", "ttl": "30m"}
INPUT_TEXT: Json = {"type": "input_text", "text": "hi", "prompt_cache_breakpoint": BREAKPOINT}
INPUT_IMAGE: Json = {
    "type": "input_image",
    "detail": "original",
    "image_url": ONE_PIXEL,
    "file_id": "file_1",
    "prompt_cache_breakpoint": BREAKPOINT,
}
INPUT_FILE: Json = {
    "type": "input_file",
    "detail": "low",
    "file_data": "data:text/plain;base64,AA==",
    "file_id": "file_1",
    "file_url": "https://example.com/a.txt",
    "filename": "a.txt",
    "prompt_cache_breakpoint": BREAKPOINT,
}
INPUT_AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}
TOKEN: Json = {"token": "a", "bytes": [0, 97, 255], "logprob": -0.5}
OUTPUT_TEXT: Json = {
    "type": "output_text",
    "text": "a",
    "annotations": [
        {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 0},
        {"type": "url_citation", "url": "https://a.b", "title": "A", "start_index": 0, "end_index": 1},
        {
            "type": "container_file_citation",
            "container_id": "cntr_1",
            "file_id": "file_1",
            "filename": "a.txt",
            "start_index": 0,
            "end_index": 1,
        },
        {"type": "file_path", "file_id": "file_1", "index": 0},
    ],
    "logprobs": [{**TOKEN, "top_logprobs": [TOKEN]}],
}
REFUSAL: Json = {"type": "refusal", "refusal": "No."}
USER: Json = {
    "type": "message",
    "id": "msg_0",
    "role": "user",
    "content": [INPUT_TEXT, INPUT_IMAGE, INPUT_FILE],
    "status": "completed",
}
ASSISTANT: Json = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [OUTPUT_TEXT, REFUSAL],
    "phase": "final_answer",
    "status": "completed",
}
REASONING: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "long"}],
    "encrypted_content": "xyz",
    "status": "completed",
}
CALL: Json = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "namespace": "weather",
    "arguments": "{}",
    "async": True,
    "caller": {"type": "program", "caller_id": "call_0"},
    "status": "completed",
}
OUTPUT: Json = {
    "type": "function_call_output",
    "id": "fco_1",
    "call_id": "call_1",
    "name": "get_weather",
    "namespace": "weather",
    "output": "sunny",
    "caller": {"type": "direct"},
    "status": "completed",
}
CUSTOM_CALL: Json = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_2",
    "name": "apply_patch",
    "namespace": "files",
    "input": "*** Begin Patch",
    "async": False,
    "caller": {"type": "direct"},
}
CUSTOM_OUTPUT: Json = {
    "type": "custom_tool_call_output",
    "id": "ctco_1",
    "call_id": "call_2",
    "output": [INPUT_TEXT, INPUT_IMAGE, INPUT_FILE],
    "caller": {"type": "direct"},
}
LOCAL_SHELL_CALL: Json = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_3",
    "action": {
        "type": "exec",
        "command": ["ls", "-l"],
        "env": {"LANG": "C"},
        "timeout_ms": 1000,
        "user": "nobody",
        "working_directory": "/",
    },
    "status": "completed",
}
LOCAL_SHELL_OUTPUT: Json = {
    "type": "local_shell_call_output",
    "id": "lsho_1",
    "call_id": "call_3",
    "output": "{}",
    "status": "completed",
}
SHELL_CALL: Json = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_4",
    "action": {"commands": ["ls"], "timeout_ms": 1000, "max_output_length": 100},
    "environment": {"type": "local"},
    "caller": {"type": "direct"},
    "status": "completed",
}
SHELL_OUTPUT: Json = {
    "type": "shell_call_output",
    "id": "sho_1",
    "call_id": "call_4",
    "output": [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": -9}},
        {"stdout": "", "stderr": "b", "outcome": {"type": "timeout"}},
    ],
    "max_output_length": 100,
    "caller": {"type": "direct"},
    "status": "completed",
}
PATCH_CALL: Json = {
    "type": "apply_patch_call",
    "id": "apc_1",
    "call_id": "call_5",
    "operation": {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"},
    "caller": {"type": "direct"},
    "status": "completed",
}
PATCH_OUTPUT: Json = {
    "type": "apply_patch_call_output",
    "id": "apco_1",
    "call_id": "call_5",
    "output": "Done.",
    "caller": {"type": "direct"},
    "status": "failed",
}
CHECKS: list[Json] = [{"id": "sc_1", "code": "malicious", "message": "Look."}]
COMPUTER_CALL: Json = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_6",
    "action": {"type": "wait"},
    "actions": [
        {"type": "click", "button": "left", "x": 1, "y": 2, "keys": ["CTRL"]},
        {"type": "double_click", "x": 1, "y": 2, "keys": ["CTRL"]},
        {"type": "drag", "path": [{"x": 1, "y": 2}], "keys": ["CTRL"]},
        {"type": "keypress", "keys": ["ENTER"]},
        {"type": "move", "x": -1, "y": 2, "keys": ["CTRL"]},
        {"type": "screenshot"},
        {"type": "scroll", "scroll_x": 0, "scroll_y": -5, "x": 1, "y": 2, "keys": ["CTRL"]},
        {"type": "type", "text": "a"},
        {"type": "wait"},
    ],
    "pending_safety_checks": CHECKS,
    "status": "completed",
}
COMPUTER_OUTPUT: Json = {
    "type": "computer_call_output",
    "id": "cuo_1",
    "call_id": "call_6",
    "output": {
        "type": "computer_screenshot",
        "image_url": ONE_PIXEL,
        "file_id": "file_1",
    },
    "acknowledged_safety_checks": CHECKS,
    "status": "completed",
}
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {}, "strict": True, "defer_loading": True}
SEARCH_CALL: Json = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "call_7",
    "execution": "client",
    "arguments": {"query": "a"},
    "status": "completed",
}
SEARCH_OUTPUT: Json = {
    "type": "tool_search_output",
    "id": "tso_1",
    "call_id": "call_7",
    "execution": "client",
    "tools": [FUNCTION, {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}],
    "status": "completed",
}
CONFIGURATION: Json = {
    "type": "configuration_update",
    "id": "cfg_1",
    "reasoning": {"effort": "high"},
    "text": {"format": {"type": "json_schema", "name": "n", "description": "d", "schema": {}, "strict": True}},
}
ADDITIONAL: Json = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [FUNCTION]}
REFERENCE: Json = {"type": "item_reference", "id": "msg_1"}

WEB_SEARCH_CALL: Json = {
    "type": "web_search_call",
    "id": "ws_1",
    "action": {
        "type": "search",
        "query": "a",
        "queries": ["a"],
        "sources": [{"type": "url", "url": "https://a.example/"}],
    },
    "status": "completed",
}
MCP_TOOLS: Json = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "s",
    "tools": [{"name": "t", "description": "T.", "input_schema": {}, "annotations": {"readOnlyHint": True}}],
    "error": "no",
}
MCP_REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "s",
    "name": "t",
    "arguments": "{}",
}
MCP_RESPONSE: Json = {
    "type": "mcp_approval_response",
    "id": "mcpa_1",
    "approval_request_id": "mcpr_1",
    "approve": True,
    "reason": "go",
}
MCP_CALL: Json = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "s",
    "name": "t",
    "arguments": "{}",
    "approval_request_id": "mcpr_1",
    "output": "42",
    "error": {"type": "http_error", "code": 500, "message": "no"},
    "status": "failed",
}

FILE_SEARCH_CALL: Json = {
    "type": "file_search_call",
    "id": "fs_1",
    "queries": ["a"],
    "status": "completed",
    "results": [{"attributes": {"k": 1}, "file_id": "file-1", "filename": "f.txt", "score": 0.5, "text": "a"}],
}

CODE_CALL: Json = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1 + 1",
    "container_id": "cntr_1",
    "status": "completed",
    "outputs": [
        {"type": "logs", "logs": "2"},
        {
            "type": "image",
            "url": ONE_PIXEL,
        },
    ],
}

IMAGE_CALL: Json = {
    "type": "image_generation_call",
    "id": "ig_1",
    "action": "edit",
    "background": "auto",
    "error": {
        "code": "moderation_blocked",
        "message": "It was blocked.",
        "param": "prompt",
        "type": "image_generation_user_error",
        "moderation_details": {"categories": ["violence"], "moderation_stage": "input"},
    },
    "output_format": "png",
    "quality": "low",
    "result": "AA==",
    "revised_prompt": "An otter",
    "size": "1024x1024",
    "status": "completed",
    "svg_usage": {"input_tokens": 1, "model": "m", "output_tokens": 2, "reasoning_tokens": 0, "total_tokens": 3},
}

COMPACTION: Json = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}

PROGRAM: Json = {"type": "program", "id": "prog_1", "call_id": "c", "code": "return 1", "fingerprint": "p1-0-a"}
PROGRAM_OUTPUT: Json = {
    "type": "program_output",
    "id": "progo_1",
    "call_id": "c",
    "result": "1",
    "status": "completed",
}

WHOLE: list[tuple[Json, Any]] = [
    (USER, None),
    (ASSISTANT, ResponseOutputMessageParam),
    (REASONING, ResponseReasoningItemParam),
    (COMPACTION, ResponseCompactionItemParamParam),
    (IMAGE_CALL, ImageGenerationCall),
    (CALL, ResponseFunctionToolCallParam),
    (PROGRAM, Program),
    (PROGRAM_OUTPUT, ProgramOutput),
    (OUTPUT, FunctionCallOutput),
    (CUSTOM_CALL, ResponseCustomToolCallParam),
    (CUSTOM_OUTPUT, ResponseCustomToolCallOutputParam),
    (LOCAL_SHELL_CALL, LocalShellCall),
    (LOCAL_SHELL_OUTPUT, None),
    (SHELL_CALL, ShellCall),
    (SHELL_OUTPUT, ShellCallOutput),
    (PATCH_CALL, ApplyPatchCall),
    (PATCH_OUTPUT, ApplyPatchCallOutput),
    (COMPUTER_CALL, ResponseComputerToolCallParam),
    (COMPUTER_OUTPUT, ComputerCallOutput),
    (SEARCH_CALL, ToolSearchCall),
    (SEARCH_OUTPUT, ResponseToolSearchOutputItemParamParam),
    (ADDITIONAL, AdditionalTools),
    (CONFIGURATION, ResponseConfigurationUpdateItemParamParam),
    (REFERENCE, ItemReference),
    (WEB_SEARCH_CALL, ResponseFunctionWebSearchParam),
    (FILE_SEARCH_CALL, ResponseFileSearchToolCallParam),
    (CODE_CALL, ResponseCodeInterpreterToolCallParam),
    (MCP_TOOLS, McpListTools),
    (MCP_CALL, McpCall),
    (MCP_REQUEST, McpApprovalRequest),
    (MCP_RESPONSE, McpApprovalResponse),
]
"""Every supported item with every key that OpenAI declares for it, and the type that declares them."""

WHOLE_PARTS: list[tuple[Json, Any]] = [
    (INPUT_TEXT, ResponseInputTextParam),
    (INPUT_IMAGE, ResponseInputImageParam),
    (INPUT_FILE, ResponseInputFileParam),
    (INPUT_AUDIO, ResponseInputAudioParam),
    (OUTPUT_TEXT, ResponseOutputTextParam),
    (REFUSAL, ResponseOutputRefusalParam),
]


def refused(value: Any, **limits: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_input(value, RequestLimits(**limits))
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def part_refused(part: Any, role: str = "user") -> ApiError:
    return refused([{"role": role, "content": [part]}])


def parsed(item: Json) -> Json:
    [result] = parse_input([item])
    return result


def types_of(member: Any) -> tuple[str, ...]:
    """Return the values of a TypedDict's `type`."""
    hint = get_type_hints(member)["type"]
    options = [hint] if get_origin(hint) is Literal else get_args(hint)
    return tuple(value for option in options if get_origin(option) is Literal for value in get_args(option))


# Accepted items


def test_string_input_becomes_user_message() -> None:
    content = [{"type": "input_text", "text": "hi"}]
    assert parse_input("hi") == [{"type": "message", "role": "user", "content": content}]


@pytest.mark.parametrize("item", [item for item, _ in WHOLE], ids=lambda item: item["type"])
def test_item_with_every_declared_key_stays_unchanged(item: Json) -> None:
    assert parsed(item) == item
    TypeAdapter(ResponseInputItem).validate_python(parsed(item))


@pytest.mark.parametrize(
    "item", [item for item, _ in WHOLE if item["type"] != "item_reference"], ids=lambda item: item["type"]
)
def test_listed_item_matches_openai_type(item: Json) -> None:
    assert problems(ResponseItem, listed(with_ids([parsed(item)]))[0]) == []


def test_listed_shell_call_has_limits_and_environment_that_the_client_left_out() -> None:
    call = {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {"commands": ["ls"]}}
    [item] = listed([parsed(call)])
    assert item["action"] == {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
    assert (item["environment"], item["status"]) == (None, "completed")


@pytest.mark.parametrize(("whole", "declared"), WHOLE + WHOLE_PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_samples_have_every_declared_key(whole: Json, declared: Any) -> None:
    if declared is not None:
        assert whole.keys() == get_type_hints(declared).keys()


@pytest.mark.parametrize(
    "action",
    [
        {"type": "search", "query": "a"},
        {"type": "open_page"},
        {"type": "open_page", "url": "https://a.example/"},
        {"type": "find_in_page", "url": "https://a.example/", "pattern": "a"},
    ],
)
def test_web_search_actions_are_accepted(action: Json) -> None:
    item = {**WEB_SEARCH_CALL, "action": action}
    assert parsed(item) == item


def test_undeclared_keys_and_nulls_are_dropped() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "id": None, "evil": 1}
    assert parsed(item) == {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_message_needs_no_type_and_its_text_becomes_part(role: str) -> None:
    content = [{"type": "input_text", "text": "hi"}]
    assert parsed({"role": role, "content": "hi"}) == {"type": "message", "role": role, "content": content}
    assert parsed({"role": role, "content": "hi", "type": None})["type"] == "message"


@pytest.mark.parametrize(
    "content", ["hi", [{"type": "input_text", "text": "hi"}], [{"type": "output_text", "text": "hi"}]]
)
def test_assistant_text_becomes_output_text(content: Any) -> None:
    message = parsed({"role": "assistant", "content": content, "phase": "commentary"})
    assert message["content"] == [{"type": "output_text", "text": "hi", "annotations": []}]
    assert message["phase"] == "commentary"


def test_default_annotations_are_not_shared() -> None:
    first, second = parse_input([{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}] * 2)
    assert first["content"][0]["annotations"] is not second["content"][0]["annotations"]


@pytest.mark.parametrize(
    "item", [{"role": "user", "content": "a"}, {"type": "reasoning"}, CALL], ids=lambda i: str(i)[:20]
)
def test_empty_id_is_dropped(item: Json) -> None:
    [kept] = parse_input([item | {"id": ""}])
    assert "id" not in kept


def test_duplicate_item_id_is_refused() -> None:
    history, items = [{"id": "msg_1"}, {}], [{"id": "msg_2"}, {}, {}]
    check_ids(history, items)
    for twice in ([*items, {"id": "msg_2"}], [{"id": "msg_1"}]):
        with pytest.raises(ApiError) as error:
            check_ids(history, twice)
        assert error.value.message.startswith(f"Duplicate item found with id {twice[-1]['id']}. Remove duplicate")
        assert error.value.param == "input"


def test_audio_is_accepted() -> None:
    assert parsed({"role": "user", "content": [INPUT_AUDIO]})["content"] == [INPUT_AUDIO]


def test_image_without_detail_gets_auto() -> None:
    image = {"type": "input_image", "image_url": "https://a.b/c.png", "detail": None}
    assert parsed({"role": "user", "content": [image]})["content"] == [{**image, "detail": "auto"}]


@pytest.mark.parametrize("output", ["", "sunny", [], [{"type": "input_text", "text": "a"}, INPUT_IMAGE, INPUT_FILE]])
def test_call_output_is_text_or_parts(output: Any) -> None:
    assert parsed({"type": "function_call_output", "call_id": "c", "output": output})["output"] == output


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "output_text", "annotations": [], "logprobs": []}])
def test_text_part_of_any_type_in_call_output_becomes_input_text(part: Json, kind: str) -> None:
    item = {"type": kind, "call_id": "c", "output": [{**part, "text": "a"}, INPUT_IMAGE]}
    assert parsed(item)["output"] == [{"type": "input_text", "text": "a"}, INPUT_IMAGE]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({}, {"summary": []}),
        ({"id": None, "summary": None, "content": None, "encrypted_content": None, "status": None}, {"summary": []}),
        ({"summary": ["a"]}, {"summary": [{"type": "summary_text", "text": "a"}]}),
        ({"summary": "a"}, {"summary": [{"type": "summary_text", "text": "a"}]}),
        ({"summary": "", "content": ""}, {"summary": [], "content": []}),
        ({"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "reasoning_text", "text": "a"}]}),
        ({"content": [{"text": "a"}]}, {"content": [{"type": "reasoning_text", "text": "a"}]}),
        ({"encrypted_content": "", "content": []}, {"encrypted_content": "", "content": []}),
    ],
)
def test_reasoning_is_accepted_in_every_form(sent: Json, kept: Json) -> None:
    assert parsed({"type": "reasoning", **sent}) == {"type": "reasoning", "summary": [], **kept}


def test_local_shell_output_may_name_call_by_id() -> None:
    kept = {"type": "local_shell_call_output", "call_id": "call_3", "output": "{}"}
    assert parsed({"type": "local_shell_call_output", "id": "call_3", "output": "{}"}) == kept
    assert parsed(kept) == kept


@pytest.mark.parametrize("named", [{"id": "lsh_9"}, {"id": "lsh_9", "call_id": None}, {"id": "lsh_9", "call_id": ""}])
def test_local_shell_call_without_call_id_is_named_by_its_id(named: Json) -> None:
    call = {"type": "local_shell_call", "action": {"command": ["ls"]}}
    assert parsed({**call, **named})["call_id"] == "lsh_9"


def test_local_shell_call_without_any_name_has_the_same_one_each_time() -> None:
    one, again, other = (
        parsed({"type": "local_shell_call", "action": {"command": [command]}})["call_id"] for command in ("a", "a", "b")
    )
    assert one == again != other


@pytest.mark.parametrize("kind", ["computer_screenshot", "input_image"])
def test_screenshot_is_accepted_under_both_types(kind: str) -> None:
    item = {"type": "computer_call_output", "call_id": "c", "output": {"type": kind, "file_id": "file_1"}}
    assert parsed(item)["output"] == {"type": "computer_screenshot", "file_id": "file_1"}


@pytest.mark.parametrize("item", [{"id": "msg_1"}, {"id": "msg_1", "type": None}, REFERENCE])
def test_id_alone_is_item_reference(item: Json) -> None:
    assert parsed(item) == REFERENCE


# Refused items


@pytest.mark.parametrize("value", [None, 1, True, {}, 1.5])
def test_input_must_be_string_or_array(value: Any) -> None:
    error = refused(value)
    assert (error.param, error.code) == ("input", "invalid_type")
    assert error.message.startswith("Invalid type for 'input': expected one of a string or an array of input items")


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ("text", "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"id": "a", "content": "b"}, ".type", "missing_required_parameter"),
        ({"type": 3}, ".type", "invalid_type"),
        ({"type": "function"}, ".type", "invalid_value"),
        ({"type": "program", "call_id": "a", "code": ""}, ".fingerprint", "missing_required_parameter"),
        ({**PROGRAM, "code": "a" * 131_073}, ".code", "string_above_max_length"),
        ({**PROGRAM_OUTPUT, "status": "failed"}, ".status", "invalid_value"),
        ({"type": "compaction"}, ".encrypted_content", "missing_required_parameter"),
        ({"type": "mcp_call"}, ".server_label", "missing_required_parameter"),
        ({**MCP_CALL, "error": {"type": "x"}}, ".error.type", "invalid_value"),
        ({**MCP_REQUEST, "id": ""}, ".id", "empty_string"),
        ({**MCP_RESPONSE, "approve": "yes"}, ".approve", "invalid_type"),
        ({"type": "message"}, ".role", "missing_required_parameter"),
        ({"role": "user"}, ".content", "missing_required_parameter"),
        ({"role": "user", "content": None}, ".content", "invalid_type"),
        ({"role": "user", "content": {}}, ".content", "invalid_type"),
        ({"role": "user", "content": ["a"]}, ".content[0]", "invalid_type"),
        ({"role": "user", "content": "a", "status": "done"}, ".status", "invalid_value"),
        ({"role": "user", "content": "a", "id": 3}, ".id", "invalid_type"),
        ({"type": "item_reference", "id": ""}, ".id", "empty_string"),
        ({"role": "assistant"}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": "a", "phase": "thinking"}, ".phase", "invalid_value"),
        ({"role": "tool", "content": "a", "tool_call_id": "c"}, ".role", "invalid_value"),
        ({"role": "function", "content": "a"}, ".role", "invalid_value"),
        ({"type": "function_call", "name": "f", "arguments": ""}, ".call_id", "missing_required_parameter"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, ".name", "missing_required_parameter"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, ".arguments", "missing_required_parameter"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, ".arguments", "invalid_type"),
        ({"type": "function_call_output", "output": "a"}, ".call_id", "missing_required_parameter"),
        ({"type": "function_call_output", "call_id": None, "output": "a"}, ".call_id", "invalid_type"),
        ({"type": "function_call_output", "call_id": "c"}, ".output", "missing_required_parameter"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, ".output", "invalid_type"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [INPUT_AUDIO]},
            ".output[0].type",
            "invalid_value",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "text"}]},
            ".output[0].text",
            "missing_required_parameter",
        ),
        ({"type": "reasoning", "summary": 3}, ".summary", "invalid_type"),
        (
            {"type": "reasoning", "summary": [{"type": "reasoning_text", "text": ""}]},
            ".summary[0].type",
            "invalid_value",
        ),
        ({"type": "reasoning", "content": [3]}, ".content[0]", "invalid_type"),
        ({"type": "item_reference"}, ".id", "missing_required_parameter"),
        ({**CALL, "caller": {"type": "program"}}, ".caller.caller_id", "missing_required_parameter"),
        ({"type": "local_shell_call_output", "output": ""}, ".call_id", "missing_required_parameter"),
        ({**SEARCH_CALL, "call_id": None}, ".call_id", "missing_required_parameter"),
        ({**SEARCH_OUTPUT, "call_id": None}, ".call_id", "missing_required_parameter"),
        ({**LOCAL_SHELL_CALL, "action": {"command": []}}, ".action.command", "empty_array"),
        ({**LOCAL_SHELL_CALL, "action": {"command": ["a"], "env": {"b": 1}}}, ".action.env.b", "invalid_type"),
        ({**SHELL_CALL, "environment": {"type": "container_auto"}}, ".environment.type", "invalid_value"),
        (
            {**SHELL_OUTPUT, "output": [{"stdout": "", "stderr": ""}]},
            ".output[0].outcome",
            "missing_required_parameter",
        ),
        (
            {**PATCH_CALL, "operation": {"type": "update_file", "path": "a"}},
            ".operation.diff",
            "missing_required_parameter",
        ),
        ({**PATCH_OUTPUT, "status": "incomplete"}, ".status", "invalid_value"),
        ({**COMPUTER_CALL, "actions": [{"type": "click"}]}, ".actions[0].x", "missing_required_parameter"),
        (
            {**COMPUTER_OUTPUT, "output": {"type": "computer_screenshot"}},
            ".output.image_url",
            "missing_required_parameter",
        ),
        ({**SEARCH_OUTPUT, "tools": [{"type": "function"}]}, ".tools[0].name", "missing_required_parameter"),
        ({**ADDITIONAL, "role": "user"}, ".role", "invalid_value"),
        ({"type": "configuration_update", "id": "cfg_1", "text": None}, "", "invalid_value"),
        ({"type": "configuration_update", "reasoning": {"effort": "huge"}}, ".reasoning.effort", "invalid_value"),
        ({"type": "configuration_update", "text": {}}, ".text.format", "missing_required_parameter"),
        (
            {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
            ".text.format.type",
            "invalid_value",
        ),
    ],
)
def test_invalid_item_is_refused_with_its_position(item: Any, param: str, code: str) -> None:
    error = refused([REFERENCE, item])
    assert (error.param, error.code) == (f"input[1]{param}", code)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({}, ".type", "missing_required_parameter"),
        ({"type": "text", "text": "a"}, ".type", "invalid_value"),
        ({"type": "image_url", "image_url": {"url": "a"}}, ".type", "invalid_value"),
        ({"type": "output_text", "text": "a"}, ".type", "invalid_value"),
        ({"type": "input_text"}, ".text", "missing_required_parameter"),
        ({"type": "input_text", "text": 1}, ".text", "invalid_type"),
        ({"type": "input_image"}, ".image_url", "missing_required_parameter"),
        ({"type": "input_image", "image_url": ""}, ".image_url", "missing_required_parameter"),
        ({"type": "input_image", "image_url": {"url": "a"}}, ".image_url", "invalid_type"),
        ({"type": "input_image", "image_url": "a", "detail": "huge"}, ".detail", "invalid_value"),
        ({"type": "input_file", "filename": "a"}, ".file_data", "missing_required_parameter"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "ogg"}}, ".input_audio.format", "invalid_value"),
        ({**INPUT_TEXT, "prompt_cache_breakpoint": {}}, ".prompt_cache_breakpoint.mode", "missing_required_parameter"),
    ],
)
def test_invalid_part_is_refused_with_its_position(part: Json, param: str, code: str) -> None:
    error = part_refused(part)
    assert (error.param, error.code) == (f"input[0].content[0]{param}", code)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image", "image_url": "a"}, ".type"),
        ({"type": "output_text", "text": "a", "annotations": [{"type": "x"}]}, ".annotations[0].type"),
        (
            {**OUTPUT_TEXT, "logprobs": [{**TOKEN, "top_logprobs": [{**TOKEN, "bytes": [256]}]}]},
            ".logprobs[0].top_logprobs[0].bytes[0]",
        ),
        ({"type": "output_text"}, ".text"),
        ({"type": "input_text"}, ".text"),
        ({"type": "refusal", "text": "a"}, ".refusal"),
    ],
)
def test_invalid_assistant_part_is_refused(part: Json, param: str) -> None:
    assert part_refused(part, "assistant").param == f"input[0].content[0]{param}"


@pytest.mark.parametrize("annotation", OUTPUT_TEXT["annotations"], ids=lambda annotation: annotation["type"])
def test_incomplete_annotation_is_refused(annotation: Json) -> None:
    for key in annotation:
        part = {**OUTPUT_TEXT, "annotations": [{name: annotation[name] for name in annotation if name != key}]}
        error = part_refused(part, "assistant")
        assert (error.param, error.code) == (
            f"input[0].content[0].annotations[0].{key}",
            "missing_required_parameter",
        )


def test_incomplete_logprob_is_refused() -> None:
    [logprob] = OUTPUT_TEXT["logprobs"]
    for key in logprob:
        part = {**OUTPUT_TEXT, "logprobs": [{name: logprob[name] for name in logprob if name != key}]}
        assert part_refused(part, "assistant").param == f"input[0].content[0].logprobs[0].{key}"


@pytest.mark.parametrize(
    "source",
    [
        {"image_url": "https://a.b/c?d=@"},
        {"image_url": "HTTP://a"},
        {"image_url": ONE_PIXEL},
        {"file_id": "a"},
    ],
)
def test_image_is_accepted_from_each_source(source: Json) -> None:
    image = {"type": "input_image", "detail": "auto", **source}
    assert parsed({"role": "user", "content": [image]})["content"] == [image]


@pytest.mark.parametrize("source", [{"file_data": "YQ=="}, {"file_id": "a"}, {"file_url": "https://a.b/c"}])
def test_file_is_accepted_from_each_source(source: Json) -> None:
    file = {"type": "input_file", "filename": "", **source}
    assert parsed({"role": "user", "content": [file]})["content"] == [file]


@pytest.mark.parametrize(
    "url",
    [
        "a",
        "file:///etc/passwd",
        "https://me:secret@a.b/c",
        "http://me@a.b",
        "http://[a",
        "http:///x",
        "https://",
        "http://:80/x",
        "http://a:99999/",
    ],
)
@pytest.mark.parametrize(("kind", "field"), [("input_image", "image_url"), ("input_file", "file_url")])
def test_invalid_url_is_refused_without_repeating_credentials(kind: str, field: str, url: str) -> None:
    error = part_refused({"type": kind, field: url})
    assert (error.param, error.code) == (f"input[0].content[0].{field}", "invalid_value")
    assert "secret" not in error.message


def test_data_url_as_file_url_is_refused() -> None:
    assert part_refused({"type": "input_file", "file_url": "data:,a"}).param == "input[0].content[0].file_url"


def test_item_errors_are_worded_like_openais() -> None:
    assert part_refused({"type": "text", "text": "a"}).message == (
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file', and 'input_audio'."
    )
    assert part_refused({"type": "text", "text": "a"}, "assistant").message == (
        "Invalid value: 'text'. Supported values are: 'output_text' and 'refusal'."
    )
    assert refused([{"role": "user", "content": 1}]).message == (
        "Invalid type for 'input[0].content': expected one of a string or an array of objects, "
        "but got an integer instead."
    )


@pytest.mark.parametrize("member", get_args(ResponseInputItemParam), ids=lambda member: member.__name__)
def test_every_openai_item_type_is_known(member: Any) -> None:
    assert set(types_of(member)) <= {item["type"] for item, _ in WHOLE} | {"compaction_trigger"}


def test_compaction_trigger_must_be_last_item() -> None:
    trigger = {"type": "compaction_trigger"}
    assert parse_input([USER, trigger]) == [USER, trigger]
    error = refused([USER, trigger, USER])
    assert (error.param, error.code) == ("input[1]", "invalid_value")
    assert "must be the last item" in error.message


# Limits


def test_input_limits_are_enforced() -> None:
    assert len(parse_input([REFERENCE] * 2, RequestLimits(max_items=2))) == 2
    error = refused([REFERENCE] * 3, max_items=2)
    assert (error.param, error.code) == ("input", "array_above_max_length")
    assert error.message == (
        "Invalid 'input': array too long. Expected an array with maximum length 2, "
        "but got an array with length 3 instead."
    )
    assert parse_input("abc", RequestLimits(max_text_length=3))
    assert refused("abcd", max_text_length=3).code == "string_above_max_length"
    assert refused([{"role": "user", "content": "abcd"}], max_text_length=3).param == "input[0].content"
    image = {
        "type": "input_image",
        "image_url": ONE_PIXEL,
    }
    assert refused([{"role": "user", "content": [image]}], max_data_length=3).param == "input[0].content[0].image_url"
    assert parse_input([{"role": "user", "content": [image]}], RequestLimits(max_text_length=3))


def test_error_repeats_little_of_client_input() -> None:
    assert refused([{"type": "x" * 10_000}]).message.count("x" * 10) < 10


def test_text_that_cannot_be_encoded_is_refused() -> None:
    assert refused("\ud800").code == "invalid_value"
    token = {"token": "a", "bytes": [], "logprob": float("nan"), "top_logprobs": []}
    assert part_refused({**OUTPUT_TEXT, "logprobs": [token]}, "assistant").code == "invalid_value"


# Calls and their outputs


def call(call_id: str, kind: str = "function_call") -> Json:
    return {"type": kind, "call_id": call_id}


def output(call_id: str, kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": call_id}


@pytest.mark.parametrize(
    "items",
    [
        [],
        parse_input("hi"),
        [call("a"), output("a")],
        [call("a"), call("b"), output("b"), output("a")],
        [call("a"), output("a"), output("a")],
        [call("a"), output("a"), call("a"), output("a")],
        [call("a"), *parse_input("hi"), output("a")],
        *([call("a", kind), output("a", answer)] for kind, answer in ANSWERS.items()),
        [{"type": "tool_search_call", "execution": "server"}],
        [call("a", "program")],
        [call("a", "program"), output("a", "program_output")],
        [call("a", "shell_call"), call("a"), output("a"), output("a", "shell_call_output")],
    ],
)
def test_matching_calls_and_outputs_are_accepted(items: list[Json]) -> None:
    check_call_pairs(items)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([output("a")], "No tool call found for function call output with call_id a."),
        ([output("a"), call("a")], "No tool call found for function call output with call_id a."),
        ([call("a")], "No tool output found for function call a."),
        ([call("a"), output("a"), call("a")], "No tool output found for function call a."),
        ([call("a"), call("b"), output("b"), *parse_input("hi")], "No tool output found for function call a."),
        ([call("a", "custom_tool_call"), output("a")], "No tool call found for function call output with call_id a."),
        ([call("a", "custom_tool_call")], "No tool output found for custom tool call a."),
        ([output("a", "program_output")], "No tool call found for program output with call_id a."),
        ([output("a", "tool_search_output")], "No tool call found for tool search call output with call_id a."),
    ],
)
def test_unmatched_calls_and_outputs_are_refused(items: list[Json], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_call_pairs(items)
    assert (caught.value.status, caught.value.message) == (400, message)
    assert (caught.value.param, caught.value.code) == ("input", None)


@pytest.mark.parametrize(
    "items",
    [
        [call("a"), *parse_input("hi")],
        [call("a"), call("b"), output("b"), *parse_input("hi")],
        [call("a", "computer_call"), *parse_input("hi"), call("a"), output("a")],
        [call("a"), *parse_input("hi"), output("a")],
        [call("a"), *parse_input("hi"), call("a"), *parse_input("hi")],
    ],
)
def test_call_without_output_is_accepted_if_the_user_goes_on(items: list[Json]) -> None:
    check_call_pairs(items, interruptible=True)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([call("a")], "No tool output found for function call a."),
        ([*parse_input("hi"), call("a"), call("b"), output("a")], "No tool output found for function call b."),
        (
            [call("a"), *parse_input([{"role": "developer", "content": "x"}])],
            "No tool output found for function call a",
        ),
        (
            [call("p", "program"), call("a") | {"caller": {"type": "program", "caller_id": "p"}}, *parse_input("hi")],
            "No tool output found for function call a.",
        ),
        ([call("a"), *parse_input("hi"), output("b")], "No tool call found for function call output with call_id b."),
    ],
)
def test_call_without_output_is_refused_while_the_user_does_not_go_on(items: list[Json], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_call_pairs(items, interruptible=True)
    assert caught.value.message.startswith(message)


def test_newest_call_without_output_is_accepted_if_no_output_can_come() -> None:
    check_call_pairs([*parse_input("hi"), call("a")], interruptible=True, ended=True)
    with pytest.raises(ApiError, match="No tool output found for function call a"):
        check_call_pairs([*parse_input("hi"), call("a")], ended=True)


def unnamed(kind: str = "function_call_output") -> Json:
    """Return an output that does not name its call."""
    return {name: value for name, value in output("", kind).items() if name != "call_id"}


@pytest.mark.parametrize(
    ("history", "items", "expected"),
    [
        ([call("a")], [unnamed()], ["a"]),
        ([call("a"), call("b")], [unnamed(), unnamed()], ["a", "b"]),
        ([call("a"), call("b")], [output("a"), unnamed()], ["a", "b"]),
        ([call("a"), call("b")], [unnamed(), output("b")], ["a", "b"]),
        ([call("a", "shell_call"), call("b")], [unnamed(), unnamed("shell_call_output")], ["b", "a"]),
        ([call("a"), *parse_input("hi"), call("b")], [unnamed()], ["b"]),
        ([call("a"), *parse_input("hi"), call("b")], [unnamed(), unnamed()], ["b", "a"]),
        ([call("a")], [*parse_input("hi"), unnamed()], [None, "a"]),
        ([call("a"), output("a"), call("a")], [unnamed()], ["a"]),
        ([], [call("a"), unnamed()], ["a", "a"]),
    ],
)
def test_output_without_call_id_belongs_to_the_oldest_open_call(
    history: list[Json], items: list[Json], expected: list[str | None]
) -> None:
    assert [item.get("call_id") for item in with_call_ids(history, items)] == expected


@pytest.mark.parametrize(
    ("history", "items", "param"),
    [
        ([], [unnamed()], "input[0].call_id"),
        ([call("a"), output("a")], [*parse_input("hi"), unnamed()], "input[1].call_id"),
        ([call("a")], [unnamed(), unnamed()], "input[1].call_id"),
        ([call("a", "custom_tool_call")], [unnamed()], "input[0].call_id"),
    ],
)
def test_output_without_call_id_and_without_an_open_call_is_refused(
    history: list[Json], items: list[Json], param: str
) -> None:
    with pytest.raises(ApiError, match="Missing required parameter") as caught:
        with_call_ids(history, items)
    assert (caught.value.param, caught.value.code) == (param, "missing_required_parameter")


def test_many_outputs_without_call_ids_are_joined_in_linear_time() -> None:
    """A quadratic walk over this many would take minutes."""
    number = 50_000
    joined = with_call_ids([call(str(each)) for each in range(number)], [unnamed() for _ in range(number)])
    assert [item["call_id"] for item in joined] == list(map(str, range(number)))


UNNAMED: dict[str, Json] = {
    "function_call_output": {"output": "x"},
    "custom_tool_call_output": {"output": "x"},
    "shell_call_output": {"output": []},
    "apply_patch_call_output": {"status": "completed"},
    "computer_call_output": {"output": {"type": "computer_screenshot", "image_url": "https://example.com/x.png"}},
}


@pytest.mark.parametrize("kind", UNNAMED)
def test_call_id_of_an_output_is_required_unless_the_limits_say_otherwise(kind: str) -> None:
    assert UNNAMED.keys() == JOINABLE
    for given in ({}, {"call_id": None}, {"call_id": ""}):
        sent = {"type": kind, **UNNAMED[kind], **given}
        with pytest.raises(ApiError) as caught:
            parse_input([sent])
        assert caught.value.param == "input[0].call_id"
        [item] = parse_input([sent], RequestLimits(call_ids_required=False))
        assert item == {"type": kind, **UNNAMED[kind]}
    [item] = parse_input([{"type": kind, **UNNAMED[kind], "call_id": "a"}], RequestLimits(call_ids_required=False))
    assert item["call_id"] == "a"
