"""Whether an error is about the content of a request, which a moderation has refused.

Many moderations answer with status 403, like a server that refuses the operator's key, some with 500 (new-api issue
6656). The rule: an error is about the content if its code says so. With status 403, it also is if its words say that
a text was flagged, blocked or filtered, or which policy it violates, and do not say the same of what belongs to the
operator: a key, an account, a project, a network.

Sources: OpenRouter and xAI (flagged, SAFETY_CHECK), LiteLLM pull request 29194 (its content filter), new-api issues
4499 and 6656, openai-cookbook issue 1224, Azure (ResponsibleAIPolicyViolation), langchain4j issue 1079 (GLM).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import openai

from .errors import message_of, status_in

_READ_CHARACTERS: Final = 2_000
_CODE_CHARACTERS: Final = 100

_CODE: Final = re.compile(
    r"content[ _-]?(?:filter|policy|moderation|safety|blocked|violation)|moderat(?:ion|ed)|guardrail"
    r"|responsible[ _-]?ai|data[ _-]?inspection|sensitive|(?:prohibited|unsafe|harmful|inappropriate)[ _-]?content"
    r"|jailbreak|prompt[ _-]?(?:blocked|injection)|safety[ _-]?(?:check|violation|block)|^safety$",
    re.IGNORECASE,
)
_NO_VERDICT: Final = re.compile(r"unavailable|error|timeout|not_found|(?<!inspection_)failed|failure", re.IGNORECASE)
"""Words of a code that says that a moderation could not judge."""
_GLM: Final = "1301"

_TEXT: Final = r"(?:content|prompt|inputs?|messages?|text|images?|outputs?|quer(?:y|ies)|response|answer)"
_JUDGED: Final = (
    r"(?:flagged|blocked|filtered|moderated|rejected|disallowed|prohibited|inappropriate|sensitive|harmful|unsafe)"
)
_CONTENT: Final = re.compile(
    rf"\bmoderation\b|\bflagged\b|\b{_TEXT}\b[^.]{{0,60}}\b{_JUDGED}\b"
    r"|\b(?:usage|content|safety|content management) (?:guidelines?|polic(?:y|ies))\b"
    r"|\bsafety[ _]?(?:check|system|filter)"
    r"|\bviolat(?:es?|ed|ing)\b[^.]{0,40}\b(?:guidelines?|polic(?:y|ies)|terms|guardrails?)\b"
    r"|\bguardrails?\b[^.]{0,40}\b(?:violat|interven|block|trigger|den|reject)|\bblocked by\b[^.]{0,30}\bguardrails?\b"
    rf"|\b{_JUDGED} (?:content|words?|material|topics?)\b|\bcontent[ _](?:filter|violation)"
    r"|\bprompt injection\b|\bjailbreak"
    r"|\u654f\u611f|\u8fdd\u89c4|\u4e0d\u5f53\u5185\u5bb9|\u5185\u5bb9\u5ba1\u6838",  # sensitive, against the rules
    re.IGNORECASE,
)
_OF_OPERATOR: Final = re.compile(
    r"\b(?:keys?|accounts?|organi[sz]ations?|projects?|workspaces?|teams?|subscriptions?|credentials?|access"
    r"|(?:access|api|bearer) tokens?|ip|addresse?s?|networks?|regions?|countr(?:y|ies)|domains?)\b(?!'s)"
    rf"[^.:;]{{0,60}}\b(?:{_JUDGED}|suspended|disabled|deactivated|terminated|banned|restricted|revoked|leaked|violat\w+)\b",
    re.IGNORECASE,
)


def is_of_content(error: openai.APIError) -> bool:
    """Return whether an error is about the content of the request."""
    if any(_CODE.search(code) and not _NO_VERDICT.search(code) for code in _codes(error)):
        return True
    status = error.status_code if isinstance(error, openai.APIStatusError) else status_in(error.body)
    if status != 403:
        return False
    words = message_of(error)[:_READ_CHARACTERS]
    return _CONTENT.search(words) is not None and _OF_OPERATOR.search(words) is None


def _codes(error: openai.APIError) -> Iterator[str]:
    """Yield the codes of an error, also that of Azure's inner error, and "content_filter" for GLM's number of it."""
    inner: Any = error.body.get("innererror") if isinstance(error.body, dict) else None
    for code in (error.code, error.type, inner.get("code") if isinstance(inner, dict) else None):
        yield "content_filter" if str(code) == _GLM else str(code or "")[:_CODE_CHARACTERS]
