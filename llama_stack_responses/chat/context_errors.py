"""Recognize error messages of model servers about requests that exceed the model's context."""

from __future__ import annotations

import re
from typing import Final

from ..core.errors import TooLongError
from ..core.late_patterns import LatePattern

_READ_CHARACTERS: Final = 2_000
"""Maximum characters of the beginning and of the end of a message that are searched: a server may repeat the request in
it."""

_SUBJECT: Final = r"(?:prompt|inputs?|request|conversation|chat|history|context|messages)"
_OVER: Final = r"(?:exceed\w*|(?:more|greater|larger|longer|higher) than|over|above|beyond)\b"
_KINDS: Final = (
    # What is too long, or has too many tokens
    rf"\b{_SUBJECT} (?:is |are |was |has become |length |length is )?too long\b",
    r"\b(?:prompt|conversation|chat|history|context) (?:is |has become )?too (?:large|big)\b|\btoo much context\b",
    rf"\b{_SUBJECT}\b[^.]{{0,40}}\b(?:has|have|contains?|is|of|with) \d{{1,15}} (?:input |prompt )?tokens\b"
    r"[^.]{0,60}\b(?:only (?:supports?|takes?|accepts?|allows?)|supports? (?:only|at most|up to)|(?:limit|maximum) is"
    rf"|{_OVER})",
    # Whose number of tokens exceeds something: not that of the answer
    rf"(?:^|[.:;] ?|\b(?:total|input|prompt|request) )tokens?\b(?: \d{{1,15}}| \(\d{{1,15}}\))?[^.]{{0,20}}\b{_OVER}",
    rf"\btokens in (?:the |your |this )?{_SUBJECT}\b[^.]{{0,40}}\b{_OVER}",
    rf"\b{_SUBJECT} exceeds? (?:the )?(?:limit of )?\d{{1,15}}[ -]tokens?\b",
    r"\bexceed\w*\b[^.]{0,20}\bmaximum (?:allowed |number of )?(?:input|prompt|context) ?(?:tokens|length|size)",
)
"""What they say of it in general: many servers and gateways have words of their own."""

_TOO_LONG: Final = LatePattern(
    "|".join(
        (
            r"context[ _](?:length|size|window)",  # OpenAI, vLLM, SGLang, llama.cpp, LM Studio, Together, MiniMax
            r"maximum context",  # Mistral
            r"context limit",  # Anthropic
            r"token length must be in \(0, ?\d{1,15}\], but got [1-9]",  # DeepSeek
            r"prompt is too long",  # Anthropic
            r"prompt too long",  # Ollama
            r"maximum number of tokens",  # Gemini
            r"supports up to \d{1,15}(?! images)",  # Gemini, Gemma
            r"maximum prompt length",  # xAI
            r"longer than the maximum model length",  # vLLM
            r"reduce the length of the (?:messages|input|prompt)",  # Groq, Cerebras
            r"exceeded model token limit",  # Kimi (kimi-cli issue 2011)
            r"input is too long for requested model",  # Bedrock
            r"range of input length should be",  # DashScope
            r"too many tokens: |total number of tokens in the (?:prompt|input)",  # Cohere
            r"prompt exceeds max length|prompt \u8d85\u957f",  # GLM (its error 1261)
            r"`?inputs`? (?:tokens \+ `?max_new_tokens`? must be|must have less than)",  # TGI, Together
            r"token count of \d{1,15} exceeds the limit of \d",  # GitHub Copilot
            r"(?:prompt|input|request|sequence) length\b[^.]{0,40}(?:exceed|greater than)",  # Volcengine, Friendli
            r"(?:prompt|input) (?:is )?(?:too long|longer than)",  # LMDeploy, MLX, KoboldCpp
            r"(?:prompt|input) ?tokens?\b[^.]{0,40}(?:exceed|too long)",  # Bedrock, Qianfan, KTransformers
            r"prompt has too many tokens",  # AI21
            r"max_(?:seq_len|num_tokens|input_len|model_len)",  # TabbyAPI, TensorRT-LLM, SiliconFlow
            r"maximum input length",  # Nebius
            r"tokens of image and text exceed|number of input tokens\b[^.]{0,40}exceed",  # Volcengine, watsonx
            r"request body too large for .{1,100} model\. max size: \d{1,15} tokens",  # GitHub Models
            r"prompttoolong",  # Replicate
            r"provide less than \d{1,15} input tokens",  # OCI
            r"exceed\w* (?:the )?maximum number of (?:input )?tokens",  # Databricks
            r"too many input tokens\b",  # Bedrock
            r"maximum supported sequence length",  # SambaNova
            r"\bmax tokens of \d{1,15} exceeded",  # Snowflake
            r"(?:input|prompt|messages?) exceeds? the maximum (?:allowed )?tokens",
            r"(?:tokens|length) of (?:the )?messages\b[^.]{0,20}exceeds? (?:the )?model(?:'s token)? limit",
            r"contextwindowexceedederror",  # LiteLLM
            r"\b\d{1,15} tokens\b[^.]{0,40}\babove the model'?s limit",
            r"reduce your prompt; or completion length",  # OpenAI, of old
            r"(?:request|prompt|input)(?: |_)tokens\b[^.]{0,20}(?:exceed\w*|> ?(?:\d|n_ctx))",
            r"\btokens\) does not fit in the kv cache\b|\bmax tokens allowed: \d|\bexceeded max tokens: prompt\b",
            r"\btoken limit exceeded: \d|\binput exceeds \d{1,15} tokens\b|\byour request was too long\b",
            r"\bmessages too long: \d|\bmax input characters is \d|\bprompt_tokens \d{1,15} > n_ctx",
            *_KINDS,
            r"token\u6570\u91cf\u8d85\u8fc7|\u8f93\u5165\u957f\u5ea6\u8d85\u8fc7",  # Spark
            # Input too long, the longest context
            r"(?:\u8f93\u5165|\u63d0\u793a|\u6d88\u606f)[^\u3002]{0,8}(?:\u8fc7\u957f|\u8d85\u957f)"
            r"|\u6700\u5927\u4e0a\u4e0b\u6587|\u4e0a\u4e0b\u6587\u957f\u5ea6",
        )
    ),
    re.IGNORECASE,
)
"""What model servers say of a request that is too long. Most texts are also quoted in openclaw pull request 9562, pi
pull request 5929 and octo-agent pull request 2124.
"""

_OF_ANSWER: Final = LatePattern(
    r"\bmax_(?:completion_|output_|new_)?tokens\b\W{0,3}(?: or \W?max_\w{1,20}\W?)? must be less than or equal to"
    r"|\bmax(?:imum)? (?:output |completion )?tokens must be (?:less|at most|<=)|\bmaximum output\b"
    r"|range of max_tokens|\bmax_tokens\W{0,2}\d{0,15} cannot be greater than",
    re.IGNORECASE,
)
"""What they say of a limit on the answer that is too high, with which they may mention the context too."""

_RATE: Final = LatePattern(
    r"rate[ _-]?limit|(?:tokens|requests|input) per (?:second|minute|hour|day)|\b[TR]P[SMHD]\b|too many requests|quota"
    r"|\bto queue\b|\bdaily\b|\bmonthly\b|\b(?:your|the|team|user|key|project)(?:'s)? budget\b|\bspend(?:ing)?\b"
    r"|\bcredits?\b|\bbalance\b|\b(?:time[sd]?|timed) out\b|\btoo long to\b|\bfor too long\b",
    re.IGNORECASE,
)
"""What they say of too many requests, of what they cost or of time, with which they may mention the context too."""

_PART: Final = r"\b(?:file ?names?|stop sequences?|(?:tool|function)s? (?:names?|descriptions?)|urls?|cache keys?)"
_OF_PART: Final = LatePattern(
    rf"{_PART}\b[^.]{{0,60}}\b(?:too long|at most|less than|limit of|maximum|exceed\w*)\b"
    rf"|\btoo long\b[^.]{{0,30}}{_PART}\b",
    re.IGNORECASE,
)
"""What they say of one part of a request: a shorter conversation has it too."""

_CODES: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI
        "exceed_context_size_error",  # llama.cpp: the type of the error, pull request 15780
        "model_context_window_exceeded",  # z.ai
        "1261",  # GLM
        "tokens_limit_reached",  # GitHub Models
        "tokens_too_long",  # Qianfan
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
    }
)
"""Codes and types of the errors."""

_LENGTH: Final = LatePattern(
    r"(?:context (?:length|size|window)(?:(?! by |exceed)[^\d.]){0,30}?|number of tokens allowed \(|tokens > "
    r"|maximum prompt length is |maximum model length of |model token limit: |supports up to "
    r"|should be \[\d{1,3}, ?|token length must be in \(0, ?|the limit of |while limit is "
    r"|too large for model with |must be <= |less than |max_seq_len \(?|max_num_tokens \(|session_len |max size: "
    r"|less than max_seq_len \(|maximum length |tokens limit |max cache length |max context of |maximum is "
    r"|max input tokens: |sequence length is (?:just |only )?|max tokens of |exceed model limit |\(\d{1,15} > "
    r"|\u4e0a\u4e0b\u6587\u957f\u5ea6\D{0,4}"
    # Input and answer together (Anthropic)
    r"|context limit: \d{1,15} \+ \d{1,15} > "
    r"|cache size \(\d{1,15} > |maximum input length is |provide less than |maximum number of input tokens )(\d{1,15})",
    re.IGNORECASE,
)

_MIN_LENGTH: Final = 256
"""The fewest tokens that are taken for a context: a smaller number is one of images, of tools or of megabytes."""

_GROUPED: Final = LatePattern(r"(?<![\d,])(?![01],\d{3}[\])])\d{1,3}(?:,\d{3})++(?![\d,])")
"""A number with commas, but no bounds as in `[1,512]`."""

_OF_TOKENS: Final = LatePattern(
    r"token|context|\blength\b|n_ctx|seq_len|sequence length|cache size|\u4e0a\u4e0b\u6587|\u957f\u5ea6", re.IGNORECASE
)
"""What is beside the number of a context."""
_OTHER: Final = r"(?:messages?|bytes?|char\w*|tools?|images?|files?|items?|parts?|turns?|words?|requests?|[KMG]i?B)\b"
_OF_OTHERS: Final = LatePattern(rf"\b{_OTHER}", re.IGNORECASE)
_BESIDE: Final = 40
"""Characters before a number, or behind it, that are read."""

_TOKENS: Final = LatePattern(
    r"(?<!\d)(\d{1,15}) in the messages"
    r"|(?:has|passed|contains|contains at least|resulted in|Given:) (\d{1,15}) (?:input )?(?:`inputs` )?tokens"
    r"|(?:request|input|too long:|token count|prompt|requested:|current length is|token count is|token count of)"
    r" \(?(?:length )?\(?(\d{1,15})|(?:prompt_tokens|cache size) \((\d{1,15})"
    r"|(?<!maximum number of )input tokens (\d{1,15})|input token count: (\d{1,15})"
    r"|(?:prompt is|tokens of messages) (\d{1,15})|for this model \((\d{1,15}) > "
    r"|context limit: (\d{1,15}) \+|(?<!\d)(\d{1,15}) tokens from the input"
    r"|(\d{1,15}) tokens(?:, session_len|\) for)|,(?: but)? got (\d{1,15})",
    re.IGNORECASE,
)


def says_too_long(message: str, *codes: object) -> bool:
    """Return whether a server's error reports a request that is too long.

    Args:
        message: its text.
        codes: its code and type.
    """
    if not _CODES.isdisjoint(map(str, codes)):
        return True
    words = _searched(message)
    return _TOO_LONG.search(words) is not None and not any(
        other.search(words) for other in (_RATE, _OF_ANSWER, _OF_PART)
    )


def _searched(message: str) -> str:
    """Return the parts of a message that are searched, their numbers written as digits alone: 8192, not 8,192."""
    if len(message) > 2 * _READ_CHARACTERS:
        message = f"{message[:_READ_CHARACTERS]} ... {message[-_READ_CHARACTERS:]}"
    return _GROUPED.sub(lambda number: number[0].replace(",", ""), message)


def says_rate(message: str) -> bool:
    """Return whether a server's error is about too many requests or tokens in some time."""
    return _RATE.search(_searched(message)) is not None


def too_long(message: str) -> TooLongError:
    """Return the error, with the lengths of the context and the request as far as the message gives them."""
    words = _searched(message)
    length, tokens = _LENGTH.search(words), _TOKENS.search(words)
    return TooLongError(
        message,
        length=_context_of(words, length) if length else None,
        tokens=int(next(filter(None, tokens.groups()))) if tokens else None,
    )


def _context_of(message: str, found: re.Match[str]) -> int | None:
    """Return the tokens of a context that a text names, or seems to name; None if it is a number of something else."""
    start, end = found.span(1)
    if int(found[1]) < _MIN_LENGTH or not _OF_TOKENS.search(message, max(0, found.start() - _BESIDE), end + _BESIDE):
        return None
    others = re.search(rf"(?<!\d){found[1]}[ -]{{0,2}}{_OTHER}", message, re.IGNORECASE)
    return None if others or _OF_OTHERS.search(message, found.start(), start) else int(found[1])
