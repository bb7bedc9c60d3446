"""Counting the tokens of a chat with the model server's own tokenizer.

vLLM counts a chat (`/tokenize` with messages). llama.cpp renders the prompt (`/apply-template`) and tokenizes it
(`/tokenize` with content). The endpoints are siblings of `/v1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import openai

from .errors import NoAnswerError
from .json_encoding import dumps
from .upstream import ROOT, Upstream

Json = dict[str, Any]

_OF_A_PROMPT: Final[Sequence[str]] = ("model", "messages", "tools", "chat_template_kwargs")
"""The fields of a chat request that affect its prompt."""
_OF_LLAMA_CPP: Final[Sequence[str]] = (*_OF_A_PROMPT, "tool_choice", "response_format")

_NO_ANSWER: Final = (openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError, NoAnswerError)


async def count_tokens(server: Upstream, request: Json, key: str | None = None) -> int | None:
    """Count the tokens of a chat request's prompt; None if the server has no such endpoint.

    Raises:
        openai.APIError: the request failed.
    """
    try:
        counted = await _ask(server, "tokenize", {**_part(request, _OF_A_PROMPT), "add_generation_prompt": True}, key)
        if isinstance(count := counted.get("count"), int):
            return count
        prompt = (await _ask(server, "apply-template", _part(request, _OF_LLAMA_CPP), key)).get("prompt")
        if not isinstance(prompt, str):
            return None
        cut = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = (await _ask(server, "tokenize", cut, key)).get("tokens")
    except _NO_ANSWER:
        return None
    except openai.APIStatusError as error:
        if error.status_code == 405:
            return None
        raise
    return len(tokens) if isinstance(tokens, list) else None


def _part(request: Json, names: Sequence[str]) -> Json:
    return {name: request[name] for name in names if name in request}


async def _ask(server: Upstream, what: str, body: Json, key: str | None) -> Json:
    answer: Json = await server.post(f"{ROOT}{what}", dumps(body), key)
    return answer
