"""What limits measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from ....core.errors import ApiError
from ..counted import Counts
from ..prices import Prices
from ..settings import Limit
from .meters import Meter
from .windows import DAY, MINUTE, MONTH, Window

_MILLIONTHS: Final = 1_000_000
"""Units of money, so that it is counted in whole numbers."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is limited.

    Attributes:
        name: its name in log lines and errors.
        kind: `requests`, `tokens`, or `money` in millionths.
        window: the time for which it is limited.
        limit: returns how much is allowed; None if it is not limited.
    """

    name: str
    kind: Literal["requests", "tokens", "money"]
    window: Window
    limit: Callable[[Limit], int | None]

    def used(self, counts: Counts, model: str, prices: Prices) -> int:
        """Return what a response has used; requests are counted before they are."""
        match self.kind:
            case "requests":
                return 0
            case "tokens":
                return counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
            case "money":
                return ceil(prices.cost(model, counts) * _MILLIONTHS)

    def refusal(self, by: str, meter: Meter) -> ApiError:
        """Return the error of a request that is refused."""
        whose = "all requests" if by == "all" else f"this {by}"
        if self.window is not MINUTE:
            message = (
                f"The limit of {self.name} of {whose} is reached. Ask the operator for more, or wait until it ends."
            )
            final = {"x-should-retry": "false"}
            return ApiError(429, message, type="insufficient_quota", code="insufficient_quota", headers=final)
        seconds = max(1, ceil(meter.seconds_left))
        message = (
            f"The limit of {self.name} of {whose} is reached: {meter.limit} are allowed. Try again in {seconds} s."
        )
        return ApiError(
            429,
            message,
            type=self.kind,
            code="rate_limit_exceeded",
            retry_after=seconds,
            headers=headers_of(self, meter),
        )


def _money(amount: float | None) -> int | None:
    return None if amount is None else round(amount * _MILLIONTHS)


MEASURES: Final = (
    Measure("requests per minute", "requests", MINUTE, lambda limit: limit.requests_per_minute),
    Measure("tokens per minute", "tokens", MINUTE, lambda limit: limit.tokens_per_minute),
    Measure("tokens per day", "tokens", DAY, lambda limit: limit.tokens_per_day),
    Measure("tokens per month", "tokens", MONTH, lambda limit: limit.tokens_per_month),
    Measure("costs per day", "money", DAY, lambda limit: _money(limit.budget_per_day)),
    Measure("costs per month", "money", MONTH, lambda limit: _money(limit.budget_per_month)),
)


def headers_of(measure: Measure, meter: Meter) -> dict[str, str]:
    """Return OpenAI's headers about a limit of a minute."""
    return {
        f"x-ratelimit-limit-{measure.kind}": str(meter.limit),
        f"x-ratelimit-remaining-{measure.kind}": str(meter.remaining),
        f"x-ratelimit-reset-{measure.kind}": _time(meter.seconds_left),
    }


def _time(seconds: float) -> str:
    """Return a time of a minute at most as OpenAI writes it."""
    return "1m0s" if seconds >= 60 else f"{round(seconds, 3):g}s"
