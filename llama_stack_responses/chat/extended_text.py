"""A text that chunks extend one after another: their JSON is read only as far as that needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .finish_reasons import may_end

_CALL_FIELDS: Final = ("index", "type", "function")


@dataclass(slots=True)
class ExtendedText:
    """What the next chunk may extend.

    Attributes:
        name: the field of a chunk's delta that has the text.
        choice: the index of the choice.
        index: the index of the call whose arguments are the text.
    """

    name: str
    choice: int
    index: int | None = None

    def text(self, raw: Any) -> str | None:
        """Return the text in a chunk's JSON; None if the chunk has anything else that counts."""
        choices = raw.get("choices") if type(raw) is dict and raw.get("usage") is None else None
        if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
            return None
        if may_end(choice, raw) or choice.get("logprobs") or choice.get("index", 0) != self.choice:
            return None
        delta = choice.get("delta")
        if type(delta) is not dict or (
            len(delta) > 1 and any(delta[name] for name in delta if name not in (self.name, "role"))
        ):
            return None
        text = delta.get(self.name)
        if self.index is not None:
            text = self._arguments(text)
        return text if type(text) is str else None

    def _arguments(self, calls: Any) -> Any:
        """Return the arguments of the only call of a chunk, if it has nothing else."""
        if type(calls) is not list or len(calls) != 1 or type(call := calls[0]) is not dict:
            return None
        function = call.get("function")
        if type(function) is not dict or call.get("index") != self.index:
            return None
        if any(call[name] for name in call if name not in _CALL_FIELDS):
            return None
        if len(function) > 1 and any(function[name] for name in function if name != "arguments"):
            return None
        return function.get("arguments")
