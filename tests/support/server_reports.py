"""Public reports of what model servers refuse and how they answer, as scripted answers: one table for the live tests.

Each entry stands for a kind. Its source is the repository and number of a public report, or what the server is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import function
from tests.support.script import Reply, error, finish, raw, reply, text, tool_call

type Json = dict[str, Any]

TOOL: Final = function("f", "a")
BARE: Final[Json] = {"type": "function", "name": "f", "parameters": {}, "strict": False}
SCHEMA: Final[Json] = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
FORMAT: Final[Json] = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
IMAGE: Final[Json] = {
    "type": "input_image",
    "image_url": ONE_PIXEL,
}


def user(content: Any = "Hi") -> Json:
    """Return a message of the user."""
    return {"role": "user", "content": content}


def loop(arguments: str = "{}", call_id: str = "call_1") -> list[Json]:
    """Return a turn with a call and its output."""
    return [
        user(),
        {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": "done"},
    ]


def called(chat: Json) -> Json:
    """Return the message with the call in a chat request."""
    return next(message for message in chat["messages"] if message.get("tool_calls"))


def images(chat: Json) -> int:
    """Return the number of images in a chat request."""
    contents = [message["content"] for message in chat["messages"] if isinstance(message["content"], list)]
    return sum(part["type"] == "image_url" for content in contents for part in content)


def without(*names: str) -> Callable[[Json], bool]:
    """Return the check that a chat request has none of these parameters."""
    return lambda chat: not any(name in chat for name in names)


def effort(value: str) -> Callable[[Json], bool]:
    """Return the check of the effort of a chat request."""
    return lambda chat: bool(chat.get("reasoning_effort") == value)


def in_words(chat: Json) -> bool:
    """Return whether the schema of an answer is asked for in words."""
    return bool(chat["response_format"] == {"type": "json_object"}) and "schema" in str(chat["messages"][0])


@dataclass(frozen=True)
class Refused:
    """A request that a model server refuses.

    Attributes:
        source: a report, or the server.
        words: what the server says, once or several times: text, or a whole answer.
        taken: returns whether it takes a chat request.
        fields: of the request.
        items: its input.
        adapted: the fields that the response has otherwise.
        answer: what it says then.
        again: how many of the refusals, the last ones, a second response meets too.
        lasts: whether a third one meets none, since what was learned is for later requests too.
    """

    source: str
    words: str | Reply | Sequence[str]
    taken: Callable[[Json], bool]
    fields: Json = field(default_factory=dict)
    items: Sequence[Json] = (user(),)
    adapted: Collection[str] = ()
    answer: str = "Hello"
    again: int = 0
    lasts: bool = True

    @property
    def replies(self) -> list[Reply]:
        """The refusals, and then the answer."""
        words = [self.words] if isinstance(self.words, str | Reply) else self.words
        return [*(each if isinstance(each, Reply) else error(400, each) for each in words), reply(text(self.answer))]


EFFORT: Final[Json] = {"reasoning": {"effort": "low"}}
HINTS: Final[Json] = {"user": "u", "temperature": 0.3, "top_p": 0.8, "max_output_tokens": 60}
KEPT: Final = ("temperature", "top_p", "stream_options", "max_completion_tokens")


def only_without_user(chat: Json) -> bool:
    """Return whether nothing but the user was dropped."""
    return "user" not in chat and all(name in chat for name in KEPT)


REFUSED: Final[Mapping[str, Refused]] = {
    # Parameters beside lists of others
    "serde": Refused(
        "a server with serde",
        "Failed to deserialize the JSON body into the target type: unknown field `user`, expected one of `model`, "
        "`messages`, `temperature`, `top_p`, `stream_options`, `max_completion_tokens` at line 1 column 99",
        only_without_user,
        HINTS,
        adapted=("user",),
    ),
    "supported parameters": Refused(
        "a gateway",
        "Unsupported parameter: user. Supported parameters: model, messages, temperature, top_p, stream_options, "
        "max_completion_tokens",
        only_without_user,
        HINTS,
        adapted=("user",),
    ),
    "another name": Refused(
        "CherryHQ/cherry-studio 1099",
        "property 'reasoning_effort' is unsupported, did you mean 'reasoning_format'?",
        without("reasoning_effort"),
        EFFORT,
        adapted=("reasoning",),
        again=1,
    ),
    "pydantic as text": Refused(
        "runpod-workers/worker-vllm 85",
        "2 validation errors for ChatCompletionRequest\nparallel_tool_calls\n  Extra inputs are not permitted "
        "[type=extra_forbidden, input_value=False, input_type=bool]\n    For further information visit "
        "https://errors.pydantic.dev/2.7/v/extra_forbidden\nuser\n  Extra inputs are not permitted "
        "[type=extra_forbidden, input_value='u', input_type=str]",
        without("user", "parallel_tool_calls"),
        {"user": "u", "parallel_tool_calls": False, "tools": [TOOL]},
        adapted=("user", "parallel_tool_calls"),
        again=1,
    ),
    "litellm": Refused(
        "BerriAI/litellm 13515",
        "litellm.UnsupportedParamsError: azure does not support parameters: ['reasoning_effort'], for model=gpt-5-mini.",
        without("reasoning_effort"),
        EFFORT,
        adapted=("reasoning",),
        again=1,
    ),
    "template": Refused(
        "vllm-project/vllm 38560",
        "Kwargs ['reasoning_effort'] are not supported by `MistralCommonTokenizer.apply_chat_template`.",
        without("reasoning_effort"),
        EFFORT,
        adapted=("reasoning",),
        again=1,
    ),
    "camel case": Refused(
        "NousResearch/hermes-agent 23088",
        Reply(
            status=400,
            body={
                "code": "Client specified an invalid argument",
                "error": "Model grok-4-1-fast does not support parameter reasoningEffort.",
            },
        ),
        without("reasoning_effort"),
        EFFORT,
        adapted=("reasoning",),
        again=1,
    ),
    "hint and length": Refused(
        "a gateway",
        "Invalid request: user length must be >= 6",
        without("user"),
        {"user": "u"},
        adapted=("user",),
    ),
    "fixed": Refused(
        "a gateway",
        "`top_p` cannot be modified for this model",
        without("top_p"),
        {"top_p": 0.5},
        adapted=("top_p",),
        again=1,
    ),
    "strict": Refused(
        "livekit/agents 3134",
        "Tools with strict=True are not supported by this model",
        lambda chat: "strict" not in chat["tools"][0]["function"],
        {"tools": [TOOL]},
        adapted=("tools",),
        again=1,
    ),
    "strict in its place": Refused(
        "Cerebras",
        Reply(
            status=400,
            body={
                "message": "Tools with strict=True are not supported by this model",
                "type": "invalid_request_error",
                "param": "tools",
                "code": "wrong_api_format",
            },
        ),
        lambda chat: "strict" not in chat["tools"][0]["function"],
        {"tools": [TOOL]},
        adapted=("tools",),
        again=1,
    ),
    "beside reasoning": Refused(
        "OpenAI",
        "Unsupported parameter: 'temperature' is not supported when reasoning effort is set.",
        without("temperature"),
        {"temperature": 0.3, **EFFORT},
        adapted=("temperature",),
        again=1,
    ),
    "busy": Refused(
        "a gateway",
        "parallel_tool_calls temporarily unavailable, the server is overloaded",
        without("parallel_tool_calls"),
        {"parallel_tool_calls": False, "tools": [TOOL]},
        adapted=("parallel_tool_calls",),
        again=1,
    ),
    # Efforts
    "efforts in marks": Refused(
        "Ollama",
        'invalid reasoning value: \'xhigh\' (must be "high", "medium", "low", "max", or "none")',
        effort("max"),
        {"reasoning": {"effort": "xhigh"}},
        adapted=("reasoning",),
        again=1,
    ),
    "efforts in a union": Refused(
        "OpenRouter",
        'reasoning.effort: Invalid option: expected one of "max"|"high"|"medium"|"low"|"none"',
        effort("low"),
        {"reasoning": {"effort": "minimal"}},
        adapted=("reasoning",),
        again=1,
    ),
    "no effort": Refused(
        "BerriAI/litellm 20066",
        "Azure OpenAI does not support reasoning_effort='none' for this model. Supported values are: 'low', 'medium', "
        "and 'high'.",
        effort("low"),
        {"reasoning": {"effort": "none"}},
        adapted=("reasoning",),
        again=1,
    ),
    "mandatory": Refused(
        "OpenRouter",
        "Reasoning is mandatory for this endpoint and cannot be disabled.",
        effort("low"),
        {"reasoning": {"effort": "none"}},
        adapted=("reasoning",),
        again=1,
    ),
    "thinking block": Refused(
        "anomalyco/opencode 3077",
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final "
        "`assistant` message must start with a thinking block",
        without("reasoning_effort"),
        EFFORT | {"tools": [TOOL]},
        loop(),
        adapted=("reasoning",),
        again=1,
    ),
    "answer with the input": Refused(
        "vLLM",
        "This model's maximum context length is 131072 tokens. However, you requested 128000 output tokens and your "
        "prompt contains at least 3073 input tokens, for a total of at least 131073 tokens.",
        lambda chat: chat["max_completion_tokens"] == 131072 - 3073,
        {"max_output_tokens": 128_000, "truncation": "auto"},
        again=1,
        lasts=False,
    ),
    # Structured answers
    "mime type": Refused(
        "Gemini",
        "Function calling with a response mime type: 'application/json' is unsupported",
        lambda chat: "response_format" not in chat or in_words(chat),
        {"text": FORMAT, "tools": [TOOL]},
        answer='{"a":[]}',
        again=1,
    ),
    "fields of schemas": Refused(
        "musistudio/claude-code-router 708",
        Reply(
            status=400,
            body={
                "message": "Unsupported JSON schema fields: {'minItems', 'items'}",
                "type": "invalid_request_error",
                "param": "response_format",
                "code": "wrong_api_format",
            },
        ),
        in_words,
        {"text": FORMAT},
        answer='{"a":[]}',
        again=1,
    ),
    "type of schemas": Refused(
        "browser-use/browser-use 2990",
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        in_words,
        {"text": FORMAT},
        answer='{"a":[]}',
        again=1,
    ),
    "title and message": Refused(
        "Spring",
        Reply(
            status=400,
            body={
                "timestamp": "2026-11-29T09:00:00.000+00:00",
                "status": 400,
                "error": "Bad Request",
                "message": 'Unrecognized field "user"',
                "path": "/v1/chat/completions",
            },
        ),
        without("user"),
        {"user": "u"},
        adapted=("user",),
    ),
    "hints one at a time": Refused(
        "a server with serde",
        [
            f"Failed to deserialize the JSON body into the target type: unknown field `{name}`, expected one of `model`, "
            "`messages`, `stream` at line 1 column 9"
            for name in (
                *("user", "prompt_cache_key", "safety_identifier", "service_tier", "verbosity", "stream_options"),
                "parallel_tool_calls",
            )
        ],
        without("user", "prompt_cache_key", "safety_identifier", "service_tier", "verbosity", "parallel_tool_calls"),
        {
            "user": "u",
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "service_tier": "flex",
            "text": {"verbosity": "low"},
            "parallel_tool_calls": False,
            "tools": [TOOL],
        },
        adapted=(*("user", "prompt_cache_key", "safety_identifier", "service_tier", "text", "parallel_tool_calls"),),
        again=1,
    ),
    # Contents
    "text alone": Refused(
        "a server with pydantic",
        Reply(
            status=422,
            body={
                "detail": [
                    {
                        "type": "union_tag_invalid",
                        "loc": ["body", "messages", 0, "content", 1],
                        "msg": "Input tag 'image_url' found using 'type' does not match any of the expected tags: 'text'",
                    }
                ]
            },
        ),
        lambda chat: images(chat) == 0,
        items=[user([{"type": "input_text", "text": "Which?"}, IMAGE])],
        again=1,
    ),
    "null": Refused(
        "Dicklesworthstone/pi_agent_rust 45",
        "invalid message content type: <nil>",
        lambda chat: called(chat).get("content") == "",
        items=loop(),
    ),
    "null in a place": Refused(
        "peach0x33a/cmdcode2api 7",
        'Invalid request error: expected string, received null at "params.messages[1].content"',
        lambda chat: called(chat).get("content") == "",
        items=loop(),
    ),
    "no tokens": Refused(
        "openclaw/openclaw 44086",
        "Messages token length must be in (0, 1048576], but got 0",
        lambda chat: called(chat).get("content") == "",
        items=loop(),
    ),
    "lost call": Refused(
        "agentjido/req_llm 966",
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        lambda chat: called(chat).get("content") == "",
        items=loop(),
    ),
    "null and empty": Refused(
        "Portkey-AI/gateway 995",
        [
            "messages[1] 的 content 不能为空",
            "messages: text content blocks must be non-empty",
            "Failed to deserialize the JSON body into the target type: messages[1]: missing field `content`",
        ],
        lambda chat: called(chat).get("content") == "(empty)",
        items=loop(),
    ),
    "ids": Refused(
        "Anthropic",
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        lambda chat: called(chat)["tool_calls"][0]["id"].isalnum(),
        items=loop(call_id="functions.f:0"),
    ),
    "images": Refused(
        "diegosouzapw/OmniRoute 3044",
        Reply(
            status=400,
            body={
                "error": {
                    "message": "Provider returned error",
                    "code": 400,
                    "metadata": {
                        "raw": '{"error":{"message":"Model \'kimi-k2.6\' supports at most 1 image per prompt."}}',
                        "provider_name": "Crucible",
                    },
                }
            },
        ),
        lambda chat: images(chat) == 1,
        items=[user([{"type": "input_text", "text": "Which?"}, IMAGE, IMAGE])],
        again=1,
    ),
    "reasoning of before": Refused(
        "karthink/gptel 774",
        "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
        "'reasoning_content' is unsupported, did you mean 'role'?)]",
        lambda chat: not any("reasoning_content" in message for message in chat["messages"]),
        {"tools": [TOOL]},
        [
            user(),
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            *loop()[1:],
        ],
    ),
    "text beside calls": Refused(
        "vllm-project/vllm 16774",
        "Assistant message must have either content or tool_calls, but not both.",
        lambda chat: not called(chat).get("content") and "Let me see." in str(chat["messages"]),
        {"tools": [TOOL]},
        [user(), {"role": "assistant", "content": "Let me see."}, *loop()[1:]],
    ),
    "text content only": Refused(
        "mlx-lm",
        error(404, "Only 'text' content type is supported."),
        lambda chat: images(chat) == 0,
        items=[user([{"type": "input_text", "text": "Which?"}, IMAGE])],
        again=1,
    ),
    # Tools
    "calls without tools, in one piece": Refused(
        "Bedrock",
        [
            "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
            "This model doesn't support tool use in streaming mode.",
        ],
        lambda chat: bool(chat.get("tools")) and not chat["stream"],
        items=[*loop(), user()],
        again=1,
    ),
    "descriptions": Refused(
        "BerriAI/litellm 19384",
        "1 validation error detected: Value '' at 'toolConfig.tools.1.member.toolSpec.description' failed to satisfy "
        "constraint: Member must have length greater than or equal to 1",
        lambda chat: chat["tools"][0]["function"].get("description") == "f",
        {"tools": [TOOL]},
    ),
    "alternatives": Refused(
        "Gemini",
        "Unable to submit request because `f` functionDeclaration `parameters.a` schema specified other fields alongside "
        "any_of. When using any_of, it must be the only field set.",
        lambda chat: chat["tools"][0]["function"]["parameters"]["properties"]["a"].keys() == {"anyOf"},
        {
            "tools": [
                BARE | {"parameters": {"properties": {"a": {"anyOf": [{"type": "string"}, SCHEMA], "title": "A"}}}}
            ]
        },
    ),
    "objects": Refused(
        "alibaba/spring-ai-alibaba 3082",
        "The value at toolConfig.tools.0.toolSpec.inputSchema.json.type must be one of the following: object.",
        lambda chat: chat["tools"][0]["function"]["parameters"].get("type") == "object",
        {"tools": [BARE | {"parameters": {"properties": {"a": {"type": "string"}}}}]},
    ),
}


@dataclass(frozen=True)
class Answered:
    """An answer of a model server.

    Attributes:
        source: a report, or the server.
        replies: what the server sends.
        status: of the response.
        said: its text, the arguments of its call, or words of its error.
        fields: of the request.
        reason: of an incomplete response.
        of_model: whether a failure is the model's: a client that does not stream gets the failed response then.
        counts: the input and output tokens; None if `usage` is null; by default, they do not matter.
    """

    source: str
    replies: Sequence[Reply]
    status: str
    said: str
    fields: Json = field(default_factory=dict)
    reason: str | None = None
    counts: tuple[int, int] | str | None = "any"
    of_model: bool = False


def ended(reason: Any, **more: Any) -> Reply:
    """Return an answer with a text that ends with this reason."""
    return reply(text("Hello"), [{"finish_reason": reason, **more}])


def with_usage(usage: Json) -> Reply:
    """Return an answer with this usage."""
    return reply(text("Hello"), usage=usage, usage_mode="last_chunk")


def arguments(*fragments: str) -> Reply:
    """Return a call with these fragments of arguments."""
    return reply(tool_call(0, "c1", "f", *fragments), finish("tool_calls"))


def messages(*contents: str) -> Reply:
    """Return whole messages in place of deltas."""
    last = len(contents) - 1
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": each}, "finish_reason": "stop" if n == last else None}
        for n, each in enumerate(contents)
    ]
    return reply([{"choices": [choice]} for choice in choices])


def begun(call_id: str | None, fragment: str) -> list[Json]:
    """Return a fragment of a call at the first place, with its name and its id."""
    call = {"index": 0, "id": call_id, "type": "function", "function": {"name": "f", "arguments": fragment}}
    return [{"delta": {"tool_calls": [call]}}]


STOPPED: Final = finish("tool_calls")
WHOLE: Final[Json] = {"id": "other", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
WANTED: Final[Json] = {"a": "x"}
OTHER: Final = function("g", "a")
NAMED: Final[Json] = {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "name": "g"}}
CALLS: Final[Json] = {"tools": [TOOL]}
LENGTH: Final = "max_output_tokens"
LAST: Final[Json] = {"index": 0, "delta": {}, "finish_reason": "stop"}
HICCUP: Final = {"code": 502, "message": "Provider hiccup"}

ANSWERED: Final[Mapping[str, Answered]] = {
    # The end
    "abort": Answered("vllm-project/vllm 57082", [ended("abort")], "failed", "aborted the answer: abort"),
    "repetition": Answered(
        "vllm-project/vllm 53270", [ended("repetition")], "incomplete", "Hello", {}, "max_output_tokens"
    ),
    "native reason": Answered(
        "OpenRouter",
        [ended("stop", native_finish_reason="MAX_TOKENS")],
        "incomplete",
        "Hello",
        {},
        "max_output_tokens",
    ),
    "armor": Answered("simstudioai/sim 6302", [ended("MODEL_ARMOR")], "incomplete", "Hello", {}, "content_filter"),
    "object as reason": Answered(
        "sgl-project/sglang 2956",
        [ended({"type": "abort", "message": "The image has no room.", "status_code": 400})],
        "failed",
        "The image has no room.",
    ),
    "error of a choice": Answered(
        "damianvtran/local-operator 223", [ended("error", error=HICCUP)], "failed", "Provider hiccup"
    ),
    "error of a chunk": Answered(
        "diegosouzapw/OmniRoute 8210",
        [
            reply(
                [{"choices": [], "error": {"code": 502, "message": "Worker local total request limit reached (33/32)"}}]
            )
        ],
        "failed",
        "Worker local total request limit reached",
    ),
    "error with success": Answered(
        "CommandCodeAI/command-code 785",
        [
            reply(
                text("Hel"),
                [
                    {
                        "raw": 'data: {"success":false,"error":{"code":"INTERNAL_SERVER_ERROR","status":500,'
                        '"message":"An unexpected error occurred."}}\n\n'
                    }
                ],
            )
        ],
        "failed",
        "An unexpected error occurred.",
    ),
    "length and then stop": Answered(
        "a gateway", [reply(text("Hello"), finish("length"), finish("stop"))], "incomplete", "Hello", {}, LENGTH
    ),
    "failure and then stop": Answered(
        "a gateway", [reply(text("Hello"), finish("network_error"), finish("stop"))], "failed", "network_error"
    ),
    "list as reason": Answered("a gateway", [ended(["length"])], "incomplete", "Hello", {}, LENGTH),
    "preempted": Answered("a server that needs its memory", [ended("preempted")], "failed", "preempted"),
    "error of a choice without a reason": Answered(
        "OpenRouter",
        [reply(text("Hel"), [{"delta": {"content": ""}, "finish_reason": None, "error": HICCUP}], end="no_finish")],
        "failed",
        "Provider hiccup",
    ),
    "status beside choices": Answered(
        "MiniMax",
        [
            reply(
                text("Hel"),
                [{"choices": [LAST], "base_resp": {"status_code": 1027, "status_msg": "output new_sensitive"}}],
            )
        ],
        "failed",
        "output new_sensitive",
    ),
    "code beside choices": Answered(
        "Spark",
        [reply(text("Hel"), [{"code": 10014, "message": "output audit failed", "choices": [LAST]}])],
        "failed",
        "output audit failed",
    ),
    "words as an event": Answered(
        "a proxy", [reply(text("Hel"), raw("data: Internal Server Error\n\n"))], "failed", "Internal Server Error"
    ),
    "signs of life as data": Answered(
        "a proxy",
        [reply(raw("data: ping\n\ndata: [HEARTBEAT]\n\n"), text("Hello"), finish("stop"), raw("data: [done]\n\n"))],
        "completed",
        "Hello",
    ),
    "null first, success last": Answered(
        "a gateway",
        [
            reply(
                raw("data: null\n\n"),
                text("Hello"),
                finish("stop"),
                [{"choices": [], "code": 200, "msg": "success", "usage": {"prompt_tokens": 9}}],
            )
        ],
        "completed",
        "Hello",
    ),
    "second choice": Answered(
        "a server that sends two",
        [
            reply(
                [
                    {"choices": [{"index": index, "delta": {"content": each}, "finish_reason": None}]}
                    for index, each in ((0, "Hel"), (1, "XX"), (0, "lo"))
                ],
                [{"choices": [LAST | {"index": 1, "finish_reason": "length"}]}],
                finish("stop"),
            )
        ],
        "completed",
        "Hello",
    ),
    "reason under another name": Answered(
        "jakobdylanc/llmcord 84",
        [reply(text("Hel"), [{"delta": {"content": "lo"}, "finishReason": "MAX_TOKENS"}], end="no_finish")],
        "incomplete",
        "Hello",
        {},
        LENGTH,
    ),
    "reason beside the choices": Answered(
        "Ollama",
        [reply(text("Hello"), [{"choices": [], "done": True, "done_reason": "length"}], end="no_finish")],
        "incomplete",
        "Hello",
        {},
        LENGTH,
    ),
    "no reason": Answered("vllm-project/vllm 27572", [reply(text("Hello"), end="no_finish")], "completed", "Hello"),
    "null as text": Answered(
        "DashScope",
        [reply([{"delta": {"content": each}, "finish_reason": "null"} for each in ("Hel", "lo")], finish("stop"))],
        "completed",
        "Hello",
    ),
    # Calls
    "null before arguments": Answered("Bedrock", [arguments("null", '{"a":', '"x"}')], "completed", '{"a":"x"}', CALLS),
    "empty list before arguments": Answered("Bedrock", [arguments("[]", '{"a":"x"}')], "completed", '{"a":"x"}', CALLS),
    "reason with a half call": Answered(
        "vllm-project/vllm 53269",
        [arguments('{"a":', '"x')],
        "failed",
        "within the arguments",
        CALLS,
        of_model=True,
    ),
    "unreadable call": Answered(
        "huggingface/text-generation-inference 2145",
        [
            Reply(
                status=422,
                body={
                    "error": "Tool error: EOF while parsing an object at line 917 column 1",
                    "error_type": "tool_error",
                },
            ),
            arguments('{"a":"x"}'),
        ],
        "completed",
        '{"a":"x"}',
        CALLS,
    ),
    "lost call": Answered(
        "sgl-project/sglang 35564", [reply(STOPPED), arguments('{"a":"x"}')], "completed", '{"a":"x"}', CALLS
    ),
    "unreadable call as the first event": Answered(
        "Bedrock",
        [
            reply(
                raw(
                    'data: {"error": {"message": "Model produced invalid sequence as part of ToolUse.", '
                    '"code": "modelStreamErrorException"}}\n\n'
                )
            ),
            arguments('{"a":"x"}'),
        ],
        "completed",
        '{"a":"x"}',
        CALLS,
    ),
    "another id in each fragment": Answered(
        "vllm-project/vllm 23522",
        [reply(begun("c1", ""), begun("c2", '{"a":'), begun("c3", '"x"}'), STOPPED)],
        "completed",
        '{"a":"x"}',
        CALLS,
    ),
    "other names of arguments": Answered(
        "a server with Llama's names",
        [
            reply(
                [{"delta": {"tool_calls": [{"index": 0.0, "id": 0, "function": {"name": "f", "parameters": WANTED}}]}}],
                STOPPED,
            )
        ],
        "completed",
        '{"a":"x"}',
        CALLS,
    ),
    "another tool than the chosen": Answered(
        "a server that forces no call",
        [arguments('{"a":"x"}')],
        "failed",
        "although it was asked twice",
        NAMED,
        of_model=True,
    ),
    "two calls on one index": Answered(
        "a server that counts all calls as the first",
        [reply(*(begun(each, '{"a":') for each in "ab"), *(begun(each, f'"{each}"}}') for each in "ab"), STOPPED)],
        "completed",
        '{"a":"a"}{"a":"b"}',
        CALLS,
    ),
    "two calls without ids on one index": Answered(
        "a server that counts all calls as the first",
        [reply(*(begun(None, '{"a":') for _ in "ab"), *(begun(None, f'"{each}"}}') for each in "ab"), STOPPED)],
        "failed",
        "cannot be told",
        CALLS,
        of_model=True,
    ),
    "call without a name": Answered(
        "a server that loses a name",
        [reply(tool_call(0, "c1", "f", '{"a":"x"}'), tool_call(1, "c2", None, '{"a":"y"}'), STOPPED)],
        "failed",
        "cannot be told",
        CALLS,
        of_model=True,
    ),
    "message with the call behind it": Answered(
        "a server with another id in the message",
        [
            reply(
                tool_call(0, "c1", "f", '{"a":', '"x"}'),
                [{"delta": {}, "message": {"role": "assistant", "tool_calls": [WHOLE]}, "finish_reason": "stop"}],
            )
        ],
        "completed",
        '{"a":"x"}',
        CALLS,
    ),
    "tool that does not exist": Answered(
        "a model that knows other tools",
        [reply(tool_call(0, "c1", "h", "{}"), STOPPED)],
        "failed",
        "keeps calling a tool that does not exist: 'h'",
        CALLS,
        of_model=True,
    ),
    # Texts
    "messages that grow": Answered("a server with whole messages", [messages("H", "Hi")], "completed", "Hi"),
    "message twice": Answered("a server with whole messages", [messages("Hi", "Hi")], "completed", "Hi"),
    "messages as pieces": Answered(
        "a server with whole messages", [messages("The cat ", "sat.")], "completed", "The cat sat."
    ),
    # Usage
    "no tokens written": Answered(
        "a server that counts a part", [with_usage({"prompt_tokens": 9})], "completed", "Hello", {}, None, None
    ),
    "no tokens read": Answered(
        "a server that counts a part",
        [with_usage({"completion_tokens": 3, "prompt_tokens": "n/a"})],
        "completed",
        "Hello",
        {},
        None,
        None,
    ),
    "total only beside one": Answered(
        "a server that counts a part",
        [with_usage({"completion_tokens": 3, "total_tokens": 12})],
        "completed",
        "Hello",
        {},
        None,
        (9, 3),
    ),
}
