"""Dialects of messages: what refusals of real model servers ask for, and what the changed messages satisfy."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.calls import short_id
from llama_stack_responses.chat.adaptation.contents import LEFT_OUT, OUTPUT, SAID_BEFORE
from llama_stack_responses.chat.adaptation.message_edits import MEDIA, WithReasoning, text_of
from llama_stack_responses.chat.adaptation.refusal import Refusal, places_of
from llama_stack_responses.chat.adaptation.registry import adapted, asked_by, dialects, in_order
from llama_stack_responses.chat.adaptation.roles import BRIDGE
from llama_stack_responses.chat.adaptation.schemas import simplified
from llama_stack_responses.chat.profile import Profile
from tests.support.chat_templates import (
    CHECKS,
    Check,
    deepseek,
    gemma,
    groq,
    llama_cpp_text,
    mistral,
    mistral_api,
    mistral_ids,
    no_blanks,
    no_missing_contents,
    no_nulls,
    old_roles,
    qwen,
    strings,
)

type Json = dict[str, Any]

AUDIO: Final[Json] = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
IMAGE: Final[Json] = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def user(content: Any = "Hi") -> Json:
    return {"role": "user", "content": content}


def system(content: str = "Be brief.") -> Json:
    return {"role": "system", "content": content}


def said(content: Any = "Hello", **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more}


def called(*ids: str, content: Any = None, **more: Any) -> Json:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def tool(call_id: str, content: Any = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


LOOP: Final = [user(), called("call_1"), tool("call_1")]
TOOLS: Final = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string", "pattern": "^a$"}}}]
CLOSED: Final = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}}
]

# Refusals, with the requests that they refuse and the dialects that answer them.
REFUSALS: Final[list[tuple[str, Json, str]]] = [
    # Qwen 3.5 and 3.6 (vLLM issue 41114, verl issue 7725)
    ("System message must be at the beginning.", {"messages": [system(), user(), system()]}, "system_first"),
    ("Only one system message is allowed.", {"messages": [system(), user(), system()]}, "system_first"),
    ("Unexpected role 'system' after role 'user'", {"messages": [user(), system(), user()]}, "system_first"),
    ("system role message must be the first message", {"messages": [user(), system()]}, "system_first"),
    # Gemma (SGLang issue 892), o1-mini (forgecode issue 1177), Google
    ("System role not supported", {"messages": [system(), user()]}, "no_system"),
    (
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        {"messages": [system(), user()]},
        "no_system",
    ),
    ("Developer instruction is not enabled for models/gemma-3-27b-it", {"messages": [system(), user()]}, "no_system"),
    ("unknown variant `system`, expected `user` or `assistant`", {"messages": [system(), user()]}, "no_system"),
    # Mistral's templates and llama.cpp (gpt4all issue 3255, crush issue 279)
    (
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
        {"messages": [user(), user()]},
        "alternate",
    ),
    (
        "Conversation roles must alternate user/assistant/user/assistant/...",
        {"messages": [user(), user()]},
        "alternate",
    ),
    (
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        {"messages": [user(), user()]},
        "alternate",
    ),
    # Mistral (zed issue 37021, mistral-vibe issue 578)
    ("Unexpected role 'user' after role 'tool'", {"messages": [*LOOP, user()]}, "assistant_after_tool"),
    ("Tool messages must be followed by an assistant message", {"messages": [*LOOP, user()]}, "assistant_after_tool"),
    # Mistral (opencode issue 1680), Azure (Portkey issue 1062)
    (
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        {"messages": LOOP},
        "nine_character_ids",
    ),
    (
        "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40",
        {"messages": LOOP},
        "nine_character_ids",
    ),
    # Older servers
    (
        "'developer' is not one of ['system', 'assistant', 'user', 'function'] - 'messages.0.role'",
        {"messages": [{"role": "developer", "content": "a"}, user()]},
        "no_developer",
    ),
    ("Unexpected message role: developer", {"messages": [{"role": "developer", "content": "a"}]}, "no_developer"),
    # llama.cpp (llamastash issue 13), Ollama (issue 17301), OpenRouter (nexu issue 875), DeepSeek (rikkahub issue 1433)
    (
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        {"messages": [user([text("a"), IMAGE])]},
        "no_images",
    ),
    ("this model does not support image input (ref: b8bd630e)", {"messages": [user([IMAGE])]}, "no_images"),
    ("No endpoints found that support image input", {"messages": [user([IMAGE])]}, "no_images"),
    (
        "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant `image_url`, expected "
        "`text` at line 1 column 679289",
        {"messages": [user([IMAGE])]},
        "no_images",
    ),
    ("qwen3-8b is not a multimodal model", {"messages": [user([IMAGE])]}, "no_images"),
    ("At most 0 image(s) may be provided in one prompt.", {"messages": [user([IMAGE])]}, "no_images"),
    # llama.cpp, OpenRouter, vLLM
    (
        "audio input is not supported - hint: you may need to provide the mmproj",
        {"messages": [user([AUDIO])]},
        "no_audio",
    ),
    ("No endpoints found that support input audio", {"messages": [user([AUDIO])]}, "no_audio"),
    ("At most 0 audio(s) may be provided in one prompt.", {"messages": [user([text("a"), AUDIO])]}, "no_audio"),
    # LibreChat issue 3111, duckai issue 16, gpt-load issue 743
    (
        "Invalid type for 'messages[0].content': expected a string, but got an array instead.",
        {"messages": [user([text("a"), text("b")])]},
        "text_content",
    ),
    (
        "messages[0].content: invalid type: sequence, expected a string at line 5 column 19",
        {"messages": [user([text("a")])]},
        "text_content",
    ),
    ("Unknown part type: thinking in content", {"messages": [said([{"type": "thinking"}])]}, "no_thinking_parts"),
    # Mistral behind another server
    (
        "Input tag 'thinking' found using 'type' does not match any of the expected tags: 'text', 'image_url'",
        {"messages": [user([text("a"), IMAGE]), said([{"type": "thinking"}, text("b")])]},
        "no_thinking_parts",
    ),
    # vLLM with Mistral's templates (issue 16774)
    (
        "Assistant message must have either content or tool_calls, but not both.",
        {"messages": [user(), called("c1", content="Let me see."), tool("c1")]},
        "content_in_outputs",
    ),
    *(
        (words, {"messages": [user(), called("c1", content="Let me see."), tool("c1")]}, "content_in_outputs")
        for words in (
            "messages[1]: content must be null when tool_calls is present",
            "assistant message cannot have both content and tool_calls",
            "messages.1: `content` must be omitted if `tool_calls` are given",
        )
    ),
    *(
        (words, {"messages": [user(), user()]}, "alternate")
        for words in (
            "Expected role 'assistant' after 'user'",
            "messages: role user cannot follow user",
            "role 'user' must not follow another 'user'",
        )
    ),
    # Anthropic
    (
        "messages: final assistant content cannot end with trailing whitespace",
        {"messages": [user(), said("So: ")]},
        "trimmed_end",
    ),
    (
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response.",
        {"messages": [user(), said(thinking_blocks=[{"type": "thinking"}])]},
        "no_reasoning",
    ),
    # GLM (opencode issue 2557)
    ("messages 参数非法。请检查文档。", {"messages": [system(), said()]}, "user_first"),
    ("The messages parameter is illegal. Please check the documentation.", {"messages": [system()]}, "user_first"),
    ("输入不能为空", {"messages": [user(), said("")]}, "no_blank_content"),
    # LM Studio (issue 261), llama.cpp (issue 13471), docker-agent issue 63
    (
        "Invalid 'content': 'content' field must be a string or an array of objects.",
        {"messages": LOOP},
        "empty_content",
    ),
    ("Expected 'content' to be a string or an array", {"messages": LOOP}, "empty_content"),
    ("Invalid value for 'content': expected a string, got null.", {"messages": LOOP}, "empty_content"),
    # Bedrock (Vercel AI SDK issue 14612), Mistral
    ("messages: text content blocks must be non-empty", {"messages": [user(), said(" ")]}, "no_blank_content"),
    (
        "Assistant message must have either content or tool_calls, but not none.",
        {"messages": [user(), said("")]},
        "no_blank_content",
    ),
    # Cerebras (kilocode issue 10375), Groq (jan issue 8136)
    (
        "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is unsupported",
        {"messages": [user(), said(reasoning_content="Hm.")]},
        "drop messages.reasoning_content",
    ),
    (
        "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning' is "
        "unsupported)]",
        {"messages": [user(), said(reasoning="Hm.")]},
        "drop messages.reasoning",
    ),
    # Anthropic (agno issue 8794, claude-code-hub issue 518), Vertex
    (
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        {"messages": [user(), said(reasoning_details=[{"type": "reasoning.text"}])]},
        "no_reasoning",
    ),
    (
        "Unable to submit request because Thought signature is not valid.. Learn more: https://cloud.google.com/",
        {"messages": [user(), called("c1", extra_content={})]},
        "no_reasoning",
    ),
    # Gemini (rust-genai issue 115)
    (
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
        "correctly, and missing thought_signature may lead to degraded model performance.",
        {"messages": LOOP},
        "stand_in_signatures",
    ),
    # DeepSeek (opencode issue 24135), Kimi (continue issue 11527)
    (
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        {"messages": [user(), said()]},
        "all_reasoning",
    ),
    (
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 7",
        {"messages": LOOP},
        "all_reasoning",
    ),
    # llama.cpp (issues 26930, 25895), Kimi (command-code issue 566), Gemini (9router issue 1036)
    (
        "JSON schema conversion failed:\nPattern must start with '^' and end with '$'",
        {"messages": [user()], "tools": TOOLS},
        "plain_schemas",
    ),
    ("Failed to initialize samplers: failed to parse grammar", {"messages": [user()], "tools": TOOLS}, "plain_schemas"),
    (
        "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'properties.a': ...>",
        {"messages": [user()], "tools": TOOLS},
        "plain_schemas",
    ),
    # Gemini (osaurus issue 647)
    (
        'Invalid JSON payload received. Unknown name "additionalProperties" at '
        "'tools[0].function_declarations[0].parameters': Cannot find field.",
        {"messages": [user()], "tools": CLOSED},
        "open_schemas",
    ),
    # LM Studio with gpt-oss (issue 842)
    (
        "Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in one "
        "or the other, but not both.",
        {"messages": [user(), called("c1", content="Let me see.", reasoning_content="Hm."), tool("c1")]},
        "content_in_reasoning",
    ),
    # mlx-openai-server (issue 189), LocalAI (pull request 10256)
    ("Failed to generate text stream: 'str object' has no attribute 'items'", {"messages": LOOP}, "object_arguments"),
    ("TypeError: Can only get item pairs from a mapping.", {"messages": LOOP}, "object_arguments"),
    ("tool call arguments must be a JSON object, not a string", {"messages": LOOP}, "object_arguments"),
    # Bedrock (ai-dial-adapter-bedrock pull request 344), Anthropic behind LiteLLM
    (
        "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
        {"messages": LOOP},
        "declared_tools",
    ),
    (
        "Requests which have `tool_use` or `tool_result` blocks in messages must define tools.",
        {"messages": LOOP, "tools": TOOLS, "tool_choice": "none"},
        "declared_tools",
    ),
    # Bedrock (browser-use issue 710)
    (
        "messages.2.content: Conversation blocks and tool result blocks cannot be provided in the same turn.",
        {"messages": [*LOOP, user()]},
        "assistant_after_tool",
    ),
    # SambaNova (claude-code-router issue 965), NVIDIA NIM (kilocode issue 4377)
    ("Invalid 'content' type. Expected one of: ['str'], got list.", {"messages": [user([text("a")])]}, "text_content"),
    (
        "6 validation errors for SystemMessage\ncontent.str\n  Input should be a valid string [type=string_type]",
        {"messages": [user([text("a")])]},
        "text_content",
    ),
    # Fireworks (pi issue 5352)
    (
        "JSON Schema not supported: could not understand the instance `{'required': ['criteria']}`.",
        {"messages": [user()], "tools": TOOLS},
        "plain_schemas",
    ),
    # Qwen's template, llama.cpp, Anthropic, Mistral
    ("No user query found in messages.", {"messages": [system(), said()]}, "user_first"),
    ("Conversation must start with a user message", {"messages": [said(), user()]}, "user_first"),
    (
        "Assistant response prefill is incompatible with enable_thinking.",
        {"messages": [user(), said()]},
        "user_last",
    ),
    (
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        {"messages": [user(), said()]},
        "user_last",
    ),
]


@pytest.mark.parametrize(("words", "chat", "dialect"), REFUSALS)
def test_refusal_asks_for_the_dialect_that_answers_it(words: str, chat: Json, dialect: str) -> None:
    steps = asked_by(Refusal(400, words), {"model": "m", **chat})
    assert [str(step) for step in steps] == [dialect]
    changed, applied = adapted(chat, steps)
    assert applied == tuple(steps)
    assert not asked_by(Refusal(400, words), changed)


BARE: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {}}}

OTHER_WORDS: Final[dict[str, list[str]]] = {
    "no_images": [
        "This model does not support images",
        "Model does not support multimodal inputs",
        "image content is not supported",
        "Multimodal input not supported",
        "unsupported content type 'image_url'",
        "The model does not support vision",
        "Image inputs are not supported by this model",
        "Invalid content type. image_url is only supported by certain models.",
        "unsupported modality: image",
        "Input modality image is not supported",
        "Vision is not enabled for this model",
        "Cannot process images: the loaded model has no vision adapter",
        "this model is missing data required for image input",
        "Provided model does not support image_url content",
        "Model 'x' is text-only",
        "Error: ValueError: Vision add-on is not loaded, but images were provided for processing",
        "Only 'text' content type is supported.",
        "messages.content.type 类型错误",
        "messages[0].content[0].type参数非法",
        "image_url content is not allowed for this model",
        "Failed to process image: no vision encoder",
        "multimodal inputs are not supported",
        "Only text content is supported",
        "Unknown part type: image_url",
        "Unexpected content chunk type: image_url",
        "当前模型不支持图片输入",
        "This model cannot process images",
        "messages.0.content.1: Input tag 'image_url' found using 'type' does not match any of the expected tags: 'text'",
        "messages.0.content.1.type: Input should be 'text'",
    ],
    "few_images 3": [
        """You set or defaulted to '{"image": 3}' in `--limit-mm-per-prompt`, but passed 7 image items in the same prompt.""",
        "Too many images in request: 7 > 3",
        "Exceeded limit on max images: 3",
    ],
    "user_first": [
        "The input messages do not contain elements with the role of user",
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        "messages: at least one message is required",
    ],
    "alternate": [
        "Jinja Exception: Conversation roles must alternate user/assistant",
        "roles should alternate",
        "Invalid message sequence: consecutive user messages are not allowed",
        "messages must alternate between user and assistant roles",
        'Error rendering prompt with jinja template: "Conversation roles must alternate user/assistant/user/assistant/..."',
        "Expected role assistant after user, got user",
        'found multiple "user" roles in a row',
        "Roles must alternate in the conversation",
        "messages: consecutive messages with the same role are not allowed",
        "messages 1 and 2 have the same role in a row",
    ],
    "assistant_after_tool": [
        "Unexpected role 'user' after role 'tool'",
        "Role 'user' is not allowed after 'tool'",
        "Expected assistant role after tool but got user",
        "Unexpected message role user following tool",
        "User message cannot follow a tool message",
        "Unexpected role RoleEnum.user after role RoleEnum.tool",
    ],
    "nine_character_ids": [
        "Invalid tool_call_id: must match ^[a-zA-Z0-9]{9}$",
        "tool_call_id must be 9 characters",
        "`tool_calls[0].id` must be alphanumeric",
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        "Tool call IDs should be alphanumeric strings with length >= 9!",
        "Invalid 'messages[1].tool_calls[0].id': string too long",
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        "messages.2.content.0.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ],
    "system_first": [
        "Only user and assistant roles are supported, with the exception of an initial optional system message!",
        "System messages are only allowed at the start of the conversation",
        "'system' role must come first",
        "Unexpected role 'system' after role 'user'",
        "Only the first message can have role system",
        "system message must be the first",
        "The system message must be at position 0",
        "Multiple system messages are not supported",
        "Conversation can only have one system message",
        "invalid params, invalid chat setting (2013)",
        "chat content has system role in the middle",
    ],
    "no_system": [
        "System messages are not supported by this model",
        "This model does not support system prompts",
        "Only user, assistant and tool roles are supported, got system.",
        "Only user and assistant roles are supported!",
        "system role is not supported",
        "Invalid role: system",
        "Unsupported role: 'system'",
    ],
    "empty_content": [
        "messages.1.content: Field required",
        'jinja2 TemplateError: can only concatenate str (not "NoneType") to str',
        "Missing required field: content",
        "content cannot be null",
        "messages[1].content must not be null",
        "assistant message content should not be None",
        "'content' is a required property - 'messages.1'",
        "invalid type: null, expected a string at line 1 (content)",
        "Value error, content should be a string",
        "json: cannot unmarshal null into field content of type string",
        "messages[2]: invalid type: null, expected a string at line 1 column 200",
        "invalid message content type: <nil>",
        "All non-assistant messages must contain 'content'",
        "'None' has no attribute 'split'",
        "未正常接收到prompt参数。",
        "The prompt parameter was not received normally.",
        "messages[1] 的 content 不能为空",
        "messages[1].content不能为空",
        "Messages token length must be in (0, 1048576], but got 0",
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        "Message has tool role, but there was no previous assistant message with a tool call!",
        "invalid params, tool result's tool id(call_function_g094w5htkglv_1) not found (2013)",
    ],
    "text_content": [
        "'messages.0.content' : value must be a string",
        "Unknown ArrayValue filter: trim",
        "content: str type expected",
        "Message content must be a string",
        "json: cannot unmarshal array into Go struct field .messages.content of type string",
        'can only concatenate str (not "list") to str',
        "Only string content is supported",
        "Unable to parse json body for request, field 'messages.content' expects input with json type 'string' but got "
        "'array'",
        "messages[0].content: expected type string, found array",
        "content must be of type string",
        "'content' has wrong type: list",
        "[] is not of type 'string' - 'messages.0.content'",
        "'list' object has no attribute 'strip'",
        "unhashable type: 'list'",
        "Input validation error: messages[0].content: data did not match any variant of untagged enum MessageContent",
    ],
    "all_reasoning": [
        "reasoning_content is required",
        "Missing `reasoning_content` field in the assistant message at message index 1",
        "assistant message must contain reasoning_content",
        "The reasoning content in thinking mode must be passed back",
        "messages[1]: reasoning_content must not be empty",
    ],
    "drop": [
        "Unknown field: reasoning_content",
        "Additional properties are not allowed ('reasoning_content' was unexpected)",
        "The reasoning_content is not allowed in the input",
        "body.messages.1.reasoning_content: Extra inputs are not permitted",
        "Unrecognized key(s) in object: 'reasoning_content'",
        "unknown field `reasoning_content`, expected one of `role`, `content`",
    ],
    "drop messages.reasoning": [
        "unsupported field messages[1].reasoning",
        "unexpected key reasoning in message",
        "The message has invalid field(s): reasoning, which is not supported",
        "reasoning is not allowed in assistant messages",
        "The reasoning field is not supported in messages",
    ],
    "drop messages.tool_calls.thought_signature": [
        "'messages.1.tool_calls.0' : property 'thought_signature' is unsupported",
        "Extra inputs are not permitted, field: 'messages[1].tool_calls[0].thought_signature'",
        "unknown field `thought_signature`, expected one of `id`, `type`, `function`",
        "Additional properties are not allowed ('thought_signature' was unexpected)",
    ],
    "plain_schemas": [
        "Invalid schema for function 'f': format is not supported",
        "Unsupported JSON schema keyword: format",
        "The schema contains features not supported by xgrammar: format",
        'Grammar error: Unimplemented keys: ["format"]',
        "tools[0].function_declarations[0].parameters.properties[x].format: only 'enum' and 'date-time' are supported for STRING type",
        "Unresolvable $ref",
        "failed to parse grammar",
        "error parsing grammar: unknown escape",
        'Unrecognized schema: {"format": "date"}',
        "JSON schema conversion failed: Unsupported pattern",
        "invalid JSON schema in tool definition",
    ],
    "user_last": [
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        "Last message must have role user or tool",
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        "Cannot continue from assistant message: prefill",
        "the last message must be from the user",
    ],
    "no_blank_content": [
        "messages.1: all messages must have non-empty content except for the optional final assistant message",
        "The text field in the ContentBlock object is blank",
        "content must not be empty",
        "Assistant message must have either content or tool_calls, but not none.",
    ],
    "described_tools": [
        "1 validation error detected: Value '' at 'toolConfig.tools.1.member.toolSpec.description' failed to satisfy "
        "constraint: Member must have length greater than or equal to 1",
        "Invalid length for parameter toolConfig.tools[0].toolSpec.description, value: 0, valid min length: 1",
        "tools.0.function.description: Field required",
    ],
    "object_schemas": [
        "The value at toolConfig.tools.0.toolSpec.inputSchema.json.type must be one of the following: object.",
        "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.",
        "Invalid schema for function 'f': In context=(), object schema missing properties",
        "tools.0.custom.input_schema.type: Field required",
    ],
    "few_images 1": [
        "At most 1 image(s) may be provided in one prompt.",
        "Model 'moonshotai/kimi-k2.6' supports at most 1 image per prompt.",
        "Too many images: the maximum is 1 image",
        "This model supports only one image per prompt",
    ],
    "stand_in_signatures": [
        "Unable to submit request because function call `default_api:read_file` in the 3. content block is missing a "
        "`thought_signature`. Learn more: https://example.com/thought-signatures",
        'Function call `f` in the 2. content block is missing a \\"thought_signature\\".',
        "The first function call is missing its thoughtSignature",
        "Function call missing thought_signature",
        "A thought signature is required for the function call `f`",
    ],
    "drop reasoning_effort": [
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final "
        "`assistant` message must start with a thinking block",
    ],
}
"""Other words for the same, as servers, templates and languages have them."""

SIGNED: Final = called("call_1")
SIGNED["tool_calls"][0]["thought_signature"] = "S"

REFUSED: Final[dict[str, list[Json]]] = {
    "all_reasoning": [user(), said(), user()],
    "alternate": [user(), user()],
    "assistant_after_tool": [*LOOP, user()],
    "empty_content": LOOP,
    "nine_character_ids": LOOP,
    "no_blank_content": [user(), said(" ")],
    "no_images": [user([IMAGE])],
    "described_tools": [user()],
    "drop": [user(), said(reasoning_content="a")],
    "drop reasoning_effort": LOOP,
    "drop messages.reasoning": [user(), said(reasoning="a")],
    "drop messages.tool_calls.thought_signature": [user(), SIGNED, tool("call_1")],
    "few_images 1": [user([IMAGE]), user([IMAGE])],
    "few_images 3": [user([IMAGE] * 4)],
    "no_system": [system(), user()],
    "object_schemas": [user()],
    "plain_schemas": [user()],
    "stand_in_signatures": LOOP,
    "system_first": [system(), user(), system(), user()],
    "text_content": [user([text("a")])],
    "user_first": [system(), called("call_1"), tool("call_1")],
    "user_last": [user(), said()],
}
"""A history that a server refuses with such words."""


@pytest.mark.parametrize(("dialect", "words"), [(name, each) for name, some in OTHER_WORDS.items() for each in some])
def test_refusal_in_other_words_asks_for_the_same_dialect(dialect: str, words: str) -> None:
    chat: Json = {"messages": REFUSED[dialect], "reasoning_effort": "low"}
    if tools := {"plain_schemas": TOOLS, "described_tools": [BARE], "object_schemas": [BARE]}.get(dialect):
        chat["tools"] = tools
    steps = asked_by(Refusal(400, words), chat)
    assert dialect in (steps[0].kind, str(steps[0]))
    assert len(steps) == 1
    assert adapted(chat, steps)[1] == tuple(steps)


@pytest.mark.parametrize(
    "loc",
    [("messages", 3, "assistant", "reasoning_content"), ("messages", 1, "assistant", "reasoning_details")],
)
def test_forbidden_reasoning_is_read_from_its_place(loc: tuple[Any, ...]) -> None:
    """Mistral (crush issue 1590)."""
    entry = {"type": "extra_forbidden", "loc": ["body", *loc], "msg": "Extra inputs are not permitted", "input": "\n"}
    refusal = Refusal(422, json.dumps([entry]), places=places_of([entry]))
    chat = {"messages": [user(), said(**{str(loc[-1]): "Hm."})]}
    assert asked_by(refusal, chat) == [Step("drop", f"messages.{loc[-1]}")]
    assert adapted(chat, asked_by(refusal, chat))[0]["messages"] == [user(), said()]


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported image format. Send PNG or JPEG.",
        "The image could not be downloaded: 404",
        "image URLs of this kind are not supported",
        "The image is too large.",
        "messages.0.content.1.image.source.base64.data: Could not process image",
        "Unable to process input image. Please retry or report in https://example.com/guide",
        "Cannot process image: dimensions exceed max allowed size of 8000 pixels",
        "cannot handle image: truncated file",
        "Cannot read image: broken PNG chunk",
        "failed to process inputs: unable to process image: EOF",
        "Unable to read image at index 0",
        "Model does not accept images larger than 20MB",
        "Model does not support images with transparency",
        "Model does not support WebP images",
        "invalid image: unexpected image_url data",
        "Invalid image_url: only https is allowed",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
        "Image part is missing a thought_signature in content position 2, part position 1.",
        "Internal server error",
        "This model's maximum context length is 8192 tokens.",
        "Invalid 'temperature': must be at most 2.",
        "You exceeded your current quota.",
    ],
)
def test_other_refusal_asks_for_no_dialect(words: str) -> None:
    chat = {"messages": [system(), user([text("a"), IMAGE]), called("call_1"), tool("call_1"), said()]}
    assert asked_by(Refusal(400, words), chat) == []


def test_equal_ids_of_two_turns_become_unique() -> None:
    """Anthropic."""
    chat = {"messages": [user(), called("c"), tool("c"), user(), called("c"), tool("c"), called("d"), tool("d")]}
    [step] = asked_by(Refusal(400, "messages.5.content.0: `tool_use` ids must be unique"), chat)
    changed, _ = adapted(chat, [step])
    calls = [message["tool_calls"][0]["id"] for message in changed["messages"] if message.get("tool_calls")]
    outputs = [message["tool_call_id"] for message in changed["messages"] if message["role"] == "tool"]
    assert calls == outputs == ["c", "c_2", "d"]
    assert [message["role"] for message in changed["messages"]] == [message["role"] for message in chat["messages"]]


def test_outputs_get_the_names_of_their_functions() -> None:
    """Gemini."""
    chat = {"messages": [user(), called("c"), tool("c")]}
    words = "GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty."
    [step] = asked_by(Refusal(400, words), chat)
    *_, call, output = adapted(chat, [step])[0]["messages"]
    assert output["name"] == call["tool_calls"][0]["function"]["name"]


@pytest.mark.parametrize(
    ("schema", "words", "plain"),
    [
        (
            {"type": "array"},
            "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[g].items: missing field.",
            {"type": "array", "items": {"type": "string"}},
        ),
        (
            {"type": "array"},
            "Invalid schema for function 'f': In context=('properties', 'g'), array schema missing items.",
            {"type": "array", "items": {"type": "string"}},
        ),
        (
            {"type": ["string", "null"]},
            "Invalid value at 'tools[0].parameters.properties[0].value.type': Proto field is not repeating, cannot start list.",
            {"type": "string", "nullable": True},
        ),
    ],
)
def test_schema_that_gemini_does_not_read_is_written_out(schema: Json, words: str, plain: Json) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"g": schema}}}
    chat: Json = {"messages": [user()], "tools": [{"type": "function", "function": function}]}
    [step] = asked_by(Refusal(400, words), chat)
    assert step == Step("plain_schemas")
    changed = adapted(chat, [step])[0]["tools"][0]["function"]["parameters"]
    assert changed == {"type": "object", "properties": {"g": plain}}


def cannot_find(name: str) -> str:
    return (
        f'Invalid JSON payload received. Unknown name "{name}" at '
        "'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field."
    )


@pytest.mark.parametrize("name", ["default", "examples", "prefixItems", "readOnly", "x-foo", "title"])
def test_keyword_that_a_refusal_names_is_left_out_and_no_other(name: str) -> None:
    part = {"type": "string", "minLength": 1}
    schema = {"type": "object", "properties": {name: part | {name: ["a"]}}, "required": [name]}
    chat: Json = {"messages": [user()], "tools": [function(schema)]}
    [step] = asked_by(Refusal(400, cannot_find(name)), chat)
    assert step == Step("no_keyword", name)
    changed = adapted(chat, [step])[0]["tools"]
    assert changed == [function({"type": "object", "properties": {name: part}, "required": [name]})]


@pytest.mark.parametrize(
    "words",
    [
        "Tool validation failed: jsonschema: '/parameters/properties/unit' does not validate with "
        "tool.json#/properties/unit: additionalProperties 'default' not allowed",
        "unsupported_keyword 'default' at tools[0].function.parameters.properties.unit",
    ],
    ids=["validator", "keyword"],
)
def test_keyword_that_a_validator_names_is_left_out(words: str) -> None:
    schema = {"type": "object", "properties": {"unit": {"type": "string", "default": "C"}}}
    chat: Json = {"messages": [user()], "tools": [function(schema)]}
    [step] = asked_by(Refusal(400, words), chat)
    assert step == Step("no_keyword", "default")
    changed = adapted(chat, [step])[0]["tools"]
    assert changed == [function({"type": "object", "properties": {"unit": {"type": "string"}}})]


def test_bound_that_a_refusal_names_becomes_a_note() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}}
    chat: Json = {"messages": [user()], "tools": [function(schema)]}
    words = "unsupported_keyword 'minimum' at tools[0].function.parameters.properties.a"
    [step] = asked_by(Refusal(400, words), chat)
    [tool_] = adapted(chat, [step])[0]["tools"]
    assert "minimum" not in tool_["function"]["parameters"]["properties"]["a"]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"description": "Any."}, "string"),
        ({"enum": [1, 2]}, "integer"),
        ({"enum": ["a", 2]}, "string"),
        ({"properties": {}}, "object"),
        ({"items": {"type": "string"}}, "array"),
    ],
)
def test_part_of_a_schema_gets_the_type_that_is_missing(part: Json, kind: str) -> None:
    schema: Json = {"type": "object", "properties": {"s": part, "t": {"anyOf": [{"type": "string"}]}}}
    chat: Json = {"messages": [user()], "tools": [function(schema)]}
    words = (
        "tools.function.parameters is not a valid moonshot flavored json schema, details: "
        "<At path 'properties.s': type is not defined>"
    )
    [step] = asked_by(Refusal(400, words), chat)
    assert step == Step("typed_schemas")
    typed = schema | {"properties": {**schema["properties"], "s": part | {"type": kind}}}
    assert adapted(chat, [step])[0]["tools"] == [function(typed)]


@pytest.mark.parametrize("name", ["$schema", "$defs", "$ref", "$id", "const"])
def test_keyword_that_can_be_written_out_is_not_left_out(name: str) -> None:
    schema = {"type": "object", "$schema": "x", "$id": "y", "properties": {"a": {"$ref": "#/$defs/A"}}}
    chat: Json = {"messages": [user()], "tools": [function(schema | {"$defs": {"A": {"const": "b"}}})]}
    steps = asked_by(Refusal(400, cannot_find(name)), chat)
    assert steps == [Step("plain_schemas")]
    written_out = {"type": "object", "properties": {"a": {"enum": ["b"]}}}
    assert adapted(chat, steps)[0]["tools"] == [function(written_out)]


def test_schemas_that_hold_together_are_merged_where_they_are_unknown() -> None:
    a, b = (dict[str, Any](type="object", properties={name: {"type": "string"}}, required=[name]) for name in "ab")
    chat: Json = {"messages": [user()], "tools": [function({"allOf": [a, b], "description": "Both."})]}
    [step] = asked_by(Refusal(400, cannot_find("allOf")), chat)
    [tool_] = adapted(chat, [step])[0]["tools"]
    both = {"type": "object", "properties": a["properties"] | b["properties"], "required": ["a", "b"]}
    assert tool_ == function(both | {"description": "Both."})


ONE_PROPERTY: Final[Json] = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "words", "dialect", "changed"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer", "enum": [7, 8]}}},
            "Invalid value at 'tools[0].function_declarations[0].parameters.properties[0].value.enum[0]' (TYPE_STRING), 7",
            "text_enums",
            {"type": "object", "properties": {"a": {"type": "integer", "description": "(enum: [7, 8])"}}},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["", "b"]}}},
            "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[a].enum[0]: cannot be empty",
            "text_enums",
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["b"]}}},
        ),
        (
            ONE_PROPERTY | {"required": ["a", "b"]},
            "* GenerateContentRequest.tools[0].function_declarations[0].parameters.required[1]: property is not defined",
            "known_required",
            ONE_PROPERTY | {"required": ["a"]},
        ),
        (
            {"type": "object", "properties": {}},
            "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties: should be non-empty for "
            "OBJECT type",
            "no_empty_schemas",
            None,
        ),
        (
            {"type": "object", "oneOf": [ONE_PROPERTY, {"properties": {"b": {}}}], "properties": {"c": {}}},
            "Invalid schema for function 'f': schema must have type 'object' and not have "
            "'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
            "flat_schemas",
            {
                "type": "object",
                "properties": {"c": {}, "a": {"type": "string"}, "b": {}},
                "description": f"({json.dumps({'oneOf': [ONE_PROPERTY, {'properties': {'b': {}}}]})})",
            },
        ),
        (
            {"allOf": [ONE_PROPERTY | {"required": ["a"]}]},
            "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
            "flat_schemas",
            ONE_PROPERTY | {"required": ["a"]},
        ),
    ],
)
def test_schema_that_breaks_one_rule_of_a_server_is_changed_for_that_rule_alone(
    schema: Json, words: str, dialect: str, changed: Json | None
) -> None:
    chat: Json = {"messages": [user()], "tools": [function(schema)]}
    [step] = asked_by(Refusal(400, words), chat)
    assert step == Step(dialect)
    got = adapted(chat, [step])[0]["tools"][0]["function"]
    assert got == ({"name": "f"} if changed is None else {"name": "f", "parameters": changed})


ALONGSIDE: Final = (
    "Unable to submit request because `f` functionDeclaration `parameters.g` schema specified other fields alongside "
    "any_of. When using any_of, it must be the only field set."
)
SOME: Final[Json] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


@pytest.mark.parametrize(
    ("schema", "lone"),
    [
        # pydantic, of an optional argument
        (
            {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None, "description": "Age."},
            {"type": "integer", "minimum": 0, "nullable": True, "default": None, "description": "Age."},
        ),
        # zod, of a described union
        (
            SOME | {"description": "Some.", "default": "a"},
            {
                "anyOf": [
                    {"type": "string", "description": "Some."},
                    {"type": "array", "items": {"type": "string"}, "description": "Some."},
                ]
            },
        ),
        (
            {"type": ["string", "array", "null"], "items": {"type": "string"}, "description": "Some."},
            {
                "anyOf": [
                    {"type": "string", "description": "Some."},
                    {"type": "array", "items": {"type": "string"}, "description": "Some."},
                    {"type": "null"},
                ]
            },
        ),
        (
            {
                "type": "object",
                "description": "A.",
                "properties": {"a": {"type": "string"}, "b": SOME},
                "required": ["a"],
                "oneOf": [{"required": ["b"], "description": "B."}, {"properties": {"c": {"type": "string"}}}],
            },
            {
                "anyOf": [
                    {
                        "type": "object",
                        "description": "A. B.",
                        "properties": {"a": {"type": "string"}, "b": SOME},
                        "required": ["a", "b"],
                    },
                    {
                        "type": "object",
                        "description": "A.",
                        "properties": {"a": {"type": "string"}, "b": SOME, "c": {"type": "string"}},
                        "required": ["a"],
                    },
                ]
            },
        ),
        # An argument of that name is none.
        ({"type": "object", "properties": {"anyOf": {"type": "string"}}}, None),
        (SOME, None),
    ],
)
def test_alternatives_of_a_schema_stand_alone_where_gemini_asks_for_it(schema: Json, lone: Json | None) -> None:
    chat: Json = {"messages": [user()], "tools": [function({"type": "object", "properties": {"g": schema}})]}
    before = deepcopy(chat)
    steps = asked_by(Refusal(400, ALONGSIDE), chat)
    if lone is None:
        assert "lone_alternatives" not in [step.kind for step in steps]
        return
    assert steps == [Step("lone_alternatives")]
    changed, _ = adapted(chat, steps)
    assert changed["tools"] == [function({"type": "object", "properties": {"g": lone}})]
    assert chat == before
    assert not adapted(changed, steps)[1]


def function(parameters: Json) -> Json:
    """Return the declaration of a function."""
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_alternatives_of_an_answer_stand_alone_where_gemini_asks_for_it() -> None:
    schema = SOME | {"description": "Some.", "$defs": {"a": {"type": "string"}}}
    form: Json = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    chat: Json = {"messages": [user()], "response_format": form}
    words = "Unable to submit request because one or more response schemas specified other fields alongside any_of."
    changed, _ = adapted(chat, asked_by(Refusal(400, words), chat))
    lone = changed["response_format"]["json_schema"]["schema"]
    assert lone.keys() == {"anyOf", "$defs"}
    assert [option["description"] for option in lone["anyOf"]] == ["Some.", "Some."]


@pytest.mark.parametrize("place", ["call", "function"])
def test_signature_of_a_call_or_of_its_function_is_dropped_where_it_is_unknown(place: str) -> None:
    chat: Json = {"messages": deepcopy(LOOP)}
    [call] = chat["messages"][1]["tool_calls"]
    (call if place == "call" else call["function"])["thought_signature"] = "S"
    loc = ["body", "messages", 1, "assistant", "tool_calls", 0, "thought_signature"]
    entry = {"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"}
    for refusal in (
        Refusal(422, json.dumps([entry]), places=places_of([entry])),
        Refusal(400, "unknown field `thought_signature`, expected one of `name`, `arguments`"),
    ):
        steps = asked_by(refusal, chat)
        assert adapted(chat, steps)[0]["messages"] == LOOP
    assert adapted(chat, [Step("no_reasoning")])[0]["messages"] == LOOP


def test_text_beside_calls_goes_before_the_output_where_it_cannot_be_beside_them() -> None:
    chat = {"messages": [user(), called("a", "b", content="Let me see."), tool("a", "1"), tool("b", "2")]}
    changed, _ = adapted(chat, [Step("content_in_outputs")])
    [_, call, first, second] = changed["messages"]
    assert (call["content"], second["content"]) == (None, "2")
    assert first["content"] == f"{SAID_BEFORE}\n\nLet me see.\n\n{OUTPUT}\n\n1"


def test_alternatives_within_alternatives_are_bounded() -> None:
    schema: Json = {"type": "string"}
    for depth in range(12):
        schema = {"anyOf": [schema, schema, {"type": "number"}], "description": str(depth) * 2_000}
    changed, _ = adapted({"messages": [user()], "tools": [function(schema)]}, [Step("lone_alternatives")])
    assert len(json.dumps(changed)) < 10 * len(json.dumps(schema))


# What the changed messages satisfy

TEXTS: Final = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=4)


@st.composite
def _calls(draw: st.DrawFn) -> list[Json]:
    ids = draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))
    content = draw(st.none() | TEXTS)
    return [called(*ids, content=content), *(tool(each, draw(TEXTS)) for each in ids)]


MESSAGES: Final = st.lists(
    st.one_of(
        st.builds(lambda content: [system(content)], TEXTS),
        st.builds(lambda content: [{"role": "developer", "content": content}], TEXTS),
        st.builds(lambda content: [user(content)], TEXTS),
        st.builds(lambda content: [user([text(content), IMAGE])], TEXTS),
        st.builds(lambda content: [said(content)], TEXTS),
        st.builds(lambda content: [said(content, reasoning_content=content)], TEXTS),
        st.builds(lambda content: [said([{"type": "thinking", "thinking": []}, text(content)])], TEXTS),
        _calls(),
    ),
    min_size=1,
    max_size=8,
).map(lambda groups: [message for group in groups for message in group])


def words(messages: Iterable[Json]) -> list[str]:
    """Return the words of all texts, in any order, without what dialects add."""
    added = {
        SAID_BEFORE,
        OUTPUT,
        BRIDGE,
        "(The conversation begins.)",
        "Continue.",
        "(empty)",
        LEFT_OUT,
        *MEDIA.values(),
    }
    texts = (each for message in messages for each in text_of(message.get("content")).split("\n\n"))
    return sorted(each for each in texts if each and each not in added)


ORDER: Final = (
    "alternate",
    "assistant_after_tool",
    "no_developer",
    "no_system",
    "system_first",
    "user_first",
    "user_last",
)


@pytest.mark.relatives
@pytest.mark.parametrize("dialect", sorted(dialects()))
@settings(max_examples=60)
@given(messages=MESSAGES)
def test_dialect_is_idempotent_loses_no_text_and_changes_nothing_in_place(dialect: str, messages: list[Json]) -> None:
    chat: Json = {"model": "m", "messages": messages, "tools": TOOLS}
    before = deepcopy(chat)
    changed, _ = adapted(chat, [Step(dialect)])
    assert chat == before
    assert words(changed["messages"]) == words(messages)
    again, applied = adapted(changed, [Step(dialect)])
    assert (again, applied) == (changed, ())


@pytest.mark.parametrize("dialect", sorted(CHECKS))
@settings(max_examples=60)
@given(messages=MESSAGES)
def test_changed_messages_satisfy_the_check(dialect: str, messages: list[Json]) -> None:
    steps = [Step(dialect)]
    if dialect == "alternate":
        steps = list(in_order([Step("no_developer"), *steps]))
    if dialect == "system_first":
        # A question is asked for apart, and an installation may name developers.
        steps = list(in_order([Step("no_developer"), Step("user_first"), *steps]))
    changed, _ = adapted({"messages": messages}, steps)
    assert CHECKS[dialect](changed["messages"]) is None


SERVERS: Final[dict[str, list[Check]]] = {
    "Mistral": [old_roles, mistral_ids, mistral_api, mistral, no_nulls, strings, groq],
    "Qwen": [old_roles, qwen, llama_cpp_text, no_nulls],
    "DeepSeek": [old_roles, strings, deepseek],
    "Bedrock": [no_blanks, old_roles, qwen],
    "no null and no empty text": [no_nulls, no_blanks],
    "no null, no empty text, and nothing missing": [no_nulls, no_blanks, no_missing_contents],
}
RETRIES: Final = 6


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=60)
@given(messages=MESSAGES)
def test_server_with_several_checks_takes_the_messages_after_a_few_refusals(server: str, messages: list[Json]) -> None:
    chat: Json = {"messages": messages}
    steps: tuple[Step, ...] = ()
    refusals: list[str] = []
    while refusal := next(
        filter(None, (check(adapted(chat, steps)[0]["messages"]) for check in SERVERS[server])), None
    ):
        refusals.append(refusal)
        assert len(refusals) <= RETRIES, refusals
        asked = asked_by(Refusal(400, refusal), adapted(chat, steps)[0], steps)
        assert asked, refusals
        steps = in_order([*steps, *asked])
    assert words(adapted(chat, steps)[0]["messages"]) == words(messages)


@settings(max_examples=60)
@given(messages=MESSAGES.filter(lambda messages: not any(message["role"] == "tool" for message in messages)))
def test_messages_for_gemma_have_turns_and_no_system(messages: list[Json]) -> None:
    steps = in_order([Step("no_developer"), Step("no_system"), Step("alternate")])
    assert gemma(adapted({"messages": messages}, steps)[0]["messages"]) is None


def test_system_messages_go_to_the_place_where_they_were() -> None:
    chat = {
        "messages": [system("a"), system("b"), user("c"), said("d"), system("e"), user([text("f"), IMAGE]), system("g")]
    }
    changed, _ = adapted(chat, [Step("system_first")])
    assert changed["messages"] == [
        system("a\n\nb\n\ng"),
        user("c"),
        said("d"),
        user([text("e"), text("f"), IMAGE]),
    ]


def test_image_of_a_tool_is_bridged_and_joined_with_the_next_question() -> None:
    chat = {"messages": [*LOOP, user([IMAGE]), user("What is it?")]}
    changed, _ = adapted(chat, in_order([Step("alternate"), Step("assistant_after_tool")]))
    assert changed["messages"] == [*LOOP, said(BRIDGE), user([IMAGE, text("What is it?")])]


def test_short_ids_are_stable_and_told_apart() -> None:
    assert short_id("call_1") == short_id("call_1")
    assert short_id("aB3456789") == "aB3456789"
    assert len({short_id(f"call_{number}") for number in range(10_000)}) == 10_000


def test_reasoning_of_earlier_turns_goes_back_where_it_is_demanded() -> None:
    earlier = WithReasoning(said("a"), lambda: "Hm.")
    chat = {"messages": [user(), earlier, user(), said("b", reasoning="So."), user(), said("c")]}
    changed, _ = adapted(chat, [Step("all_reasoning")])
    assert [message.get("reasoning_content") for message in changed["messages"]] == [None, "Hm.", None, "So.", None, ""]
    assert json.dumps(chat["messages"][1]) == json.dumps(said("a"))


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_profile_names_any_dialect(dialect: str) -> None:
    assert Profile(dialect=[dialect]).dialect == [dialect]


def test_functions_of_earlier_calls_are_declared_and_not_called() -> None:
    chat = {"messages": LOOP, "tool_choice": "none"}
    changed, _ = adapted(chat, [Step("declared_tools")])
    assert [each["function"]["name"] for each in changed["tools"]] == ["f"]
    assert "tool_choice" not in changed
    assert changed["messages"][0] == {"role": "system", "content": "Do not call any tool now."}
    offered, _ = adapted(chat | {"tools": TOOLS}, [Step("declared_tools")])
    assert offered["tools"] == TOOLS


def test_text_beside_calls_becomes_a_part_of_the_reasoning() -> None:
    message = called("c1", content="Let me see.", reasoning_content="Hm.", reasoning="Hm.")
    changed, _ = adapted({"messages": [message]}, [Step("content_in_reasoning")])
    both = "Hm.\n\nLet me see."
    assert changed["messages"] == [called("c1", content=None, reasoning_content=both, reasoning=both)]


def test_arguments_of_calls_become_objects() -> None:
    changed, _ = adapted({"messages": LOOP}, [Step("object_arguments")])
    [call] = next(message["tool_calls"] for message in changed["messages"] if message.get("tool_calls"))
    assert isinstance(call["function"]["arguments"], dict)


# Schemas


def test_open_schema_keeps_a_property_of_that_name() -> None:
    inner = {"type": "object", "properties": {"additionalProperties": {"type": "string"}}}
    closed = inner | {"additionalProperties": False}
    schema = {"type": "object", "anyOf": [closed], "$defs": {"x": closed}, "additionalProperties": {"type": "string"}}
    chat = {"messages": [user()], "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
    changed, _ = adapted(chat, [Step("open_schemas")])
    opened = {"type": "object", "anyOf": [inner], "$defs": {"x": inner}}
    assert changed["tools"][0]["function"]["parameters"] == opened
    assert adapted(changed, [Step("open_schemas")]) == (changed, ())


def test_schema_is_simplified_and_says_what_it_lost() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date", "description": "The day."},
            "zip": {"type": "string", "pattern": r"^\d+$", "maxLength": 5},
            "to": {"$ref": "#/$defs/place", "description": "Where to."},
            "kind": {"const": "a"},
            "some": {"type": "object", "anyOf": [{"properties": {"b": {"type": "string"}}}, {"type": "null"}]},
        },
        "required": ["day"],
        "$defs": {
            "place": {"type": "object", "properties": {"city": {"type": "string"}, "in": {"$ref": "#/$defs/place"}}}
        },
    }
    city = {"type": "string"}
    assert simplified(schema) == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "description": "The day. (format: date)"},
            "zip": {"type": "string", "description": r"(pattern: ^\d+$, maxLength: 5)"},
            "to": {
                "type": "object",
                "properties": {"city": city, "in": {"type": "object"}},
                "description": "Where to.",
            },
            "kind": {"enum": ["a"]},
            "some": {"anyOf": [{"type": "object", "properties": {"b": {"type": "string"}}}, {"type": "null"}]},
        },
        "required": ["day"],
    }


SCHEMAS: Final = st.recursive(
    st.one_of(
        st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "number", "boolean"])),
        st.builds(lambda kind: {"type": "string", "format": kind}, TEXTS),
        st.builds(lambda kind: {"type": "string", "pattern": kind, "description": kind}, TEXTS),
        st.sampled_from([{"$ref": "#/$defs/a"}, {"$ref": "#"}, {"$ref": "#/nowhere"}, {"const": 1}, {}, True]),
    ),
    lambda inner: st.one_of(
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(lambda each: {"properties": each}, st.dictionaries(TEXTS, inner, max_size=3)),
        st.builds(lambda each: {"oneOf": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"type": "object", "anyOf": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each, other: {"$defs": {"a": other}, "allOf": [each]}, inner, inner),
    ),
    max_leaves=12,
).filter(lambda schema: isinstance(schema, dict))


@given(SCHEMAS)
def test_simplified_schema_stays_so_and_has_nothing_that_compilers_refuse(schema: Json) -> None:
    before = deepcopy(schema)
    plain = simplified(schema)
    assert schema == before
    assert simplified(plain) == plain
    found = json.dumps(plain)
    assert not any(f'"{name}":' in found for name in ("$ref", "$defs", "format", "pattern", "const", "oneOf"))


def test_schema_that_refers_to_itself_many_times_is_bounded() -> None:
    names = [f"d{number}" for number in range(40)]
    defs = {
        name: {"properties": {"l": {"$ref": f"#/$defs/{after}"}, "r": {"$ref": f"#/$defs/{after}"}}}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": defs | {"end": {"type": "string"}}}
    assert len(json.dumps(simplified(schema))) < 2_000_000


def test_bridge_has_reasoning_where_the_other_messages_of_the_assistant_must_have_it() -> None:
    chat: Json = {"model": "m", "messages": [*LOOP, user()]}
    changed, _ = adapted(chat, in_order([Step("assistant_after_tool"), Step("all_reasoning")]))
    assert CHECKS["all_reasoning"](changed["messages"]) is None
    assert CHECKS["assistant_after_tool"](changed["messages"]) is None
