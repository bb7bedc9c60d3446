"""The names of tools in calls: some servers leave parts of the model's own format around them."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

_MARK: Final = re.compile(r"<[^>]{0,64}>?")
"""A special token, such as `<|channel|>` (gpt-oss: vLLM issue 32587)."""
_PREFIX: Final = re.compile(r"(?:to=)?(?:(?:functions?|tools?|default_api)[./:])?")
"""The recipient in a header of gpt-oss, and the namespaces of functions of gpt-oss, Kimi K2 and Gemini."""
_NUMBER: Final = re.compile(r"(?::\d{1,9}|\(\))\Z")
"""The number of the call, which Kimi K2 writes behind the name, or empty brackets."""
_READ_CHARACTERS: Final = 512
_WORDS: Final = 8


def without_marks(name: str) -> str:
    """Return a name without the special tokens behind it, and what follows them."""
    return name.partition("<")[0].strip() or name


def meant_name(name: str, known: Container[str]) -> str:
    """Return the known name that the name of a call means; the name as it is if there is none."""
    if name in known or len(name) > _READ_CHARACTERS:
        return name
    for word in _MARK.sub(" ", name).split()[:_WORDS]:
        bare = _PREFIX.sub("", word, count=1)
        for each in (word, bare, _NUMBER.sub("", bare), bare.replace(".", "__")):  # the last one: of a namespace
            if each in known:
                return each
    return name
