"""What a program of the model gets of a call that it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

CUT_OFF: Final = "The call was cut off, and its result is lost. It may have taken effect."
"""The message for a call whose result is lost."""

_ATTACHMENT: Final = "(an attachment, which programs cannot read)"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        kind: what the program gets: the text as a string, the value of the JSON, or an `Error` with the message.
        value: the text, the JSON, or the message.
    """

    kind: Literal["text", "json", "error"]
    value: str


def failed(message: str) -> CallResult:
    """Return the result of a call that failed."""
    return CallResult("error", message)


def json_result(value: Any) -> CallResult:
    """Return a JSON value as a result."""
    return CallResult("json", orjson.dumps(value).decode())


def text_result(output: Any) -> CallResult:
    """Return the text of an `output`, which is text or content parts."""
    text = output if isinstance(output, str) else "\n".join(part.get("text", _ATTACHMENT) for part in output)
    return CallResult("text", text)
