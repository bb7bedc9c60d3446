"""How many tokens a chat has, by the model server's own tokenizer.

vLLM counts a chat (`/tokenize` with messages). llama.cpp makes a prompt of it (`/apply-template`) and cuts that into
tokens (`/tokenize` with content). Both stand beside the `/v1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import openai

from .body import dumps
from .errors import NoAnswerError
from .upstream import ROOT, Upstream

Json = dict[str, Any]

_OF_A_PROMPT: Final[Sequence[str]] = ("model", "messages", "tools", "chat_template_kwargs")
"""The fields of a chat request that its prompt is made of, and what else llama.cpp makes it of."""
_OF_LLAMA_CPP: Final[Sequence[str]] = (*_OF_A_PROMPT, "tool_choice", "response_format")

_NO_ANSWER: Final = (openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError, NoAnswerError)


async def count_tokens(server: Upstream, request: Json, key: str | None = None) -> int | None:
    """The tokens of a chat request's prompt; None if the server has nothing that counts them.

    Raises:
        openai.APIError: it failed, or could not be reached.
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
