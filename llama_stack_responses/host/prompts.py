"""The host's Prompts API."""

from __future__ import annotations

import re
from typing import Any, Final

from ..inputs.prompts import PromptVersion
from .failures import failed, is_missing
from .platform import GetPromptRequest

_ID: Final = re.compile("pmpt_[0-9a-f]{48}")
"""Format of the host's prompt ids. Another value could be part of a key of its store."""


class HostPrompts:
    """Reads prompts through the host, which checks the user's access.

    Args:
        prompts: the host's implementation of its Prompts API.
    """

    def __init__(self, prompts: Any) -> None:
        self._prompts = prompts

    async def get(self, prompt_id: str, version: int | None) -> PromptVersion | None:
        """Return a version of a prompt, or its default one; None if the host does not find it for this user.

        Raises:
            ApiError: 503 if the host cannot read it.
        """
        if not _ID.fullmatch(prompt_id):
            return None
        try:
            prompt = await self._prompts.get_prompt(GetPromptRequest(prompt_id=prompt_id, version=version))
        except Exception as error:
            if is_missing(error, prompt_id):
                return None
            raise failed("prompt store", "prompt", error) from error
        return PromptVersion(prompt.prompt or "", prompt.version, frozenset(prompt.variables))
