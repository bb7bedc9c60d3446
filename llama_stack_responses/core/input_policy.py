"""What happens to input that would otherwise end a conversation for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """The policy for input of which a part is lost.

    Attributes:
        drops_reasoning: whether the sealed part of reasoning, and a sealed summary, that do not open are dropped;
            otherwise they are refused.
        fills_calls: whether the model gets a note in place of the output of a call after which the user went on;
            otherwise the call is refused.
    """

    drops_reasoning: bool = False
    fills_calls: bool = True


DEFAULT_POLICY: Final = InputPolicy()
