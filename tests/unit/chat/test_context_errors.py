"""Model servers' refusals of requests that are too long."""

import pytest

from llama_stack_responses.chat.context_errors import says_too_long, too_long


@pytest.mark.parametrize(
    ("message", "length", "tokens"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5220 tokens (5210 in the "
            "messages, 10 in the completion). Please reduce the length of the messages or completion.",
            4096,
            5210,
        ),
        (
            "You passed 5210 input tokens and requested 10 output tokens. However, the model's context length is only "
            "4096 tokens, resulting in a maximum input length of 4086 tokens.",
            4096,
            5210,
        ),
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130011 tokens.",
            128000,
            130011,
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
            "tokens and your request has 24 input tokens (5000 > 4096 - 24).",
            4096,
            24,
        ),
        ("Messages token length must be in (0, 1048576], but got 1200000", 1048576, 1200000),
        ("request (5031 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096, 5031),
        ("The input (5031 tokens) is longer than the model's context length (4096 tokens).", 4096, 5031),
        ("prompt is too long: 208310 tokens > 200000 maximum", 200000, 208310),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1048576,
            1200000,
        ),
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072, 537812),
        ("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)", 262144, 291351),
        ("Please reduce the length of the messages or completion.", None, None),
        ("input length and `max_tokens` exceed context limit: 3000 + 130000 > 131072", 131072, 3000),
        (
            "This model's maximum context length is 131072 tokens. However, you requested 128000 output tokens and "
            "your prompt contains at least 3073 input tokens, for a total of at least 131073 tokens.",
            131072,
            3073,
        ),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
            "5220 tokens: 3210 tokens from the input messages and 2010 tokens for the completion.",
            4096,
            3210,
        ),
        ("Please reduce the length of the messages. Current length is 9000 while limit is 8192", 8192, 9000),
        ("Input is too long for requested model.", None, None),
        ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]", 98304, None),
        ("too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs.", None, None),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096, 5000),
        ("Prompt \u8d85\u957f", None, None),
        ("Prompt exceeds max length", None, None),
        ("prompt too long; exceeded max context length by 10 tokens", None, None),
        ("invalid params, context window exceeds limit (2013)", None, None),
        ("prompt token count of 5000 exceeds the limit of 4096", 4096, 5000),
        # SiliconFlow, TabbyAPI, TensorRT-LLM
        ("length of prompt_tokens (5000) must be less than max_seq_len (4096).", 4096, 5000),
        ("Prompt length 5000 is greater than max_seq_len 4096", 4096, 5000),
        ("The sum of prompt length (5000.0) and query length (0) should not exceed max_num_tokens (4096)", 4096, 5000),
        # GitHub Models, watsonx, Volcengine
        ("Request body too large for gpt-4o model. Max size: 8000 tokens.", 8000, None),
        ("the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model", 4096, 5000),
        ("Input length 140000 exceeds the maximum length 131072. Request id: 1", 131072, 140000),
        ("Total tokens of image and text exceed max message tokens. Request id: 1", None, None),
        # Qianfan, AI21, Bedrock
        ("Prompt tokens too long", None, None),
        ("Prompt has too many tokens. Maximum is 4096, got 5000", 4096, 5000),
        ("Input Tokens Exceeded: Number of input tokens exceeds maximum length.", None, None),
        # MLX, KoboldCpp, KTransformers, LMDeploy, Friendli, Nebius, Replicate
        ("Prompt is longer than the maximum KV cache size (5000 > 4096)", 4096, 5000),
        ("Your prompt is too long (5000 tokens) for the max context of 4096", 4096, 5000),
        ("Input tokens 5000 exceed max cache length 4096", 4096, 5000),
        ("The input is too long: 5000 tokens, session_len 4096", 4096, 5000),
        ("Input length 5000 exceeds the limit of 4096", 4096, 5000),
        ("This model's maximum input length is 4096 tokens. However, your input has 5000 tokens.", 4096, 5000),
        ("E1002 PromptTooLong: Prompt length exceeds maximum input length", None, None),
        # OCI, Databricks
        ("Please provide less than 4096 input tokens. Input has 5000.", 4096, None),
        ("REQUEST_LIMIT_EXCEEDED: Request exceeds the maximum number of input tokens 4096", 4096, None),
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",
            4097,
            5000,
        ),
        ("the input token count is 32825 but model only supports up to 32768", 32768, 32825),
        # Bedrock, SambaNova, Snowflake, and others
        ("Too many input tokens. Max input tokens: 8192, request input token count: 9146", 8192, 9146),
        (
            "Requested generation length 1 is not possible! The provided prompt is 9000 tokens long, so generating 1 "
            "tokens requires a sequence length of 9001, but the maximum supported sequence length is just 8192 tokens!",
            8192,
            9000,
        ),
        ("max tokens of 8192 exceeded", 8192, None),
        (
            "\u8f93\u5165\u5185\u5bb9\u8fc7\u957f\uff0c\u8d85\u8fc7\u6a21\u578b\u6700\u5927\u4e0a\u4e0b\u6587\u957f\u5ea6 8192 tokens",
            8192,
            None,
        ),
        ("Your input exceeds the maximum allowed tokens for this model (9000 > 8192)", 8192, 9000),
        ("Total tokens of messages 9000 exceed model limit 8192", 8192, 9000),
        ("The total length of the messages exceeds the model's token limit", None, None),
        ("litellm.BadRequestError: litellm.ContextWindowExceededError: m", None, None),
        ("This request has 9000 tokens which is above the model's limit of 8192 tokens", None, 9000),
        ("Please reduce your prompt; or completion length.", None, None),
        ("Number of request tokens exceeds the maximum sequence length 8192", None, None),
        ("messages too long: 9000 tokens exceeds 8192", None, 9000),
        ("prompt (9000 tokens) does not fit in the KV cache (8192)", None, 9000),
        ("prompt_tokens 9000 > n_ctx 8192", None, None),
        ("tokens in request more than max tokens allowed: 9000 > 8192", None, None),
        ("exceeded max tokens: prompt 9000, max 8192", None, 9000),
        ("Model token limit exceeded: 9000 tokens > 8192", 8192, None),
        ("input exceeds 8192 tokens", None, None),
        ("Your request was too long. Please shorten your messages.", None, None),
        ("token\u6570\u91cf\u8d85\u8fc7\u4e0a\u9650", None, None),
        ("\u8f93\u5165\u957f\u5ea6\u8d85\u8fc7\u9650\u5236", None, None),
        ("the max input characters is 2000", None, None),
        # Of many gateways, in their own words
        ("Total tokens 9000 exceed limit 8192", None, None),
        ("The prompt has 9000 tokens but the model only supports 8192", None, 9000),
        ("tokens exceed model maximum: 9000 vs 8192", None, None),
        ("Conversation too long", None, None),
        ("The conversation is too long for this model.", None, None),
        ("Input length too long", None, None),
        ("You have exceeded the maximum allowed input tokens", None, None),
        ("the number of tokens in the request (9000) is more than the maximum 8192", None, 9000),
        ("The total number of tokens in your messages is greater than the maximum allowed", None, None),
        ("Prompt exceeds 8,192 token limit (9,049 tokens)", None, None),
        ("Prompt is too long, max tokens supported is 4096 or less, got 5000", None, 5000),
        ("Your request contains 9000 input tokens, which is above the maximum of 8192", None, 9000),
        ("Too much context loaded. Please start a new conversation or ask about specific files.", None, None),
        ("Invalid request: input tokens (9000) exceed the limit", None, None),
        ("The chat history is too large for the model.", None, None),
        ("ollama error: context length exceeded", None, None),
        # Numbers with commas
        ("The input (9,031 tokens) is longer than the model's context length (8,192 tokens).", 8192, 9031),
        ("prompt is too long: 1,208,310 tokens > 1,000,000 maximum", 1000000, 1208310),
        ("Messages token length must be in (0,512], but got 1200000", 512, 1200000),
        # What is no number of tokens
        ("maximum context length is 16 tokens", None, None),
        ("prompt is too long; images must be less than 5 MB each", None, None),
        ("context window: at most 20 images, limit of 20", None, None),
        ("reduce the length of the messages: at most 128 tools, maximum is 128", None, None),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    ],
)
def test_token_counts_are_read_from_refusal(message: str, length: int | None, tokens: int | None) -> None:
    assert says_too_long(message)
    error = too_long(message)
    assert (error.length, error.tokens, error.message) == (length, tokens, message)
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")


@pytest.mark.parametrize(
    "message",
    [
        "no such thing as min_p",
        "Rate limit of 100 requests reached",
        "Rate limit reached for model in organization on tokens per minute: maximum context 1 TPM",
        "tokens per minute limit exceeded for this context window",
        "Too many requests: reduce the length of the messages or wait",
        # Bedrock's throttling
        "Too many tokens, please wait before trying again.",
        # A limit on the answer that is too high: GPUStack (issue 3685), Groq, vLLM
        '"max_completion_tokens" or "max_tokens" must be less than or equal to the model\'s context length.',
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        "max_tokens=9000 cannot be greater than max_model_len=4096",
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model - received 9000.",
        "The input is too short",
        "input image is too long on one side",
        "Your request was too long to queue: waited 30 s",
        "token limit exceeded: 9000 of your daily 8192 tokens",
        "request tokens exceed your budget",
        "Total tokens exceed the monthly quota of this key",
        "The request tokens exceed the credits of this key",
        "The request took too long to process",
        "Your request waited for too long",
        "The request has timed out: input too long in the queue",
        # Of one part of the request, which a shorter conversation has too
        "input too long: file names must be less than 1024 bytes",
        "prompt too long: tool description must be less than 1024 characters",
        "input is too long for requested model: stop sequence less than 512",
        "Prompt cache key is too long",
        "The request's URL is too long",
        # Of the answer
        "The request has 9000 output tokens, more than the model's maximum of 8192",
        "max_tokens exceeds the limit of 4096",
        "output tokens (9000) exceed the limit",
        "Requested completion tokens exceed the maximum",
        "thinking tokens exceed the maximum of 8192",
    ],
)
def test_other_refusals_are_not_taken_as_too_long(message: str) -> None:
    assert not says_too_long(message)


@pytest.mark.parametrize("digits", [16, 5_000, 100_000])
def test_huge_number_in_refusal_is_ignored(digits: int) -> None:
    error = too_long(f"maximum context length, your request has {'9' * digits} {'9' * digits}x")
    assert error.length is None or error.length < 10**15
    assert error.tokens is None or error.tokens < 10**15


def test_refusal_is_read_at_its_beginning_and_its_end() -> None:
    said = "maximum context length is 8,192 tokens"
    assert not says_too_long("x" * 3_000 + said + "x" * 3_000)
    for each in (said + "x" * 9_000, "x" * 9_000 + f" {said}"):
        assert says_too_long(each)
        assert too_long(each).length == 8192


@pytest.mark.parametrize(
    "code", ["context_length_exceeded", "exceed_context_size_error", "1261", 1261, "tokens_limit_reached"]
)
def test_code_or_type_says_too_long(code: object) -> None:
    assert says_too_long("no", code)
    assert says_too_long("no", None, code)
    assert not says_too_long("no", None, "invalid_request_error")


@pytest.mark.parametrize(
    "message",
    [
        "context window exceeded: maximum is 512 messages",
        "reduce the length of the messages: maximum is 256 messages",
        "context length: at most 500 tools, the limit of 500",
        "context length error: image tokens limit of 1000",
        "input too long: file names must be less than 1024 bytes",
        "prompt too long: tool description must be less than 1024 characters",
        "input is too long for requested model: stop sequence less than 512",
        "prompt is too long: at most 300 characters per name, limit of 300",
        "prompt is too long: header less than 8192 bytes",
        # Of the same manner
        "context window exceeded: maximum is 300 turns",
        "prompt too long: the limit of 512 words",
        "context size 4096 KB exceeded",
        "input is too long for requested model: less than 600 items",
        "context limit: maximum is 1000 requests",
        "reduce the length of the messages, maximum is 400 parts",
    ],
)
def test_number_of_something_else_is_no_context(message: str) -> None:
    assert too_long(message).length is None
