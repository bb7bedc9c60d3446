"""What limits measure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from ....core.errors import ApiError
from ..counted import Counts
from ..prices import Prices
from ..settings import Limit
from .meters import Meter
from .windows import DAY, MINUTE, MONTH, Window

_HELD_SECONDS: Final = 1
"""Seconds after which a request is tried again that waits for the end of others."""
_MILLIONTHS: Final = 1_000_000
"""Units of money, so that it is counted in whole numbers."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is limited.

    Attributes:
        amount: its name in settings.
        name: its name in errors.
        kind: `requests`, `tokens`, or `money` in millionths.
        window: the time for which it is limited.
    """

    amount: str
    name: str
    kind: Literal["requests", "tokens", "money"]
    window: Window

    def limit(self, limit: Limit) -> int | None:
        """Return how much is allowed; None if it is not limited."""
        allowed: float | None = getattr(limit, self.amount)
        if allowed is None:
            return None
        return round(allowed * _MILLIONTHS) if self.kind == "money" else int(allowed)

    def used(self, counts: Counts, model: str, prices: Prices) -> int:
        """Return what a response has used; requests are counted before they are."""
        match self.kind:
            case "requests":
                return 0
            case "tokens":
                return counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
            case "money":
                return ceil(prices.cost(model, counts) * _MILLIONTHS)

    @property
    def is_quota(self) -> bool:
        """Whether it is not soon renewed."""
        return self.window is not MINUTE

    def refusal_at_present(self, by: str, meter: Meter) -> ApiError:
        """Return the error of a request that is refused, which is not final while running responses hold the rest."""
        if not (self.is_quota and meter.is_held):
            return self.refusal(by, meter)
        message = (
            f"What is left of the limit of {self.name} of {_whose(by)} may be used by the responses that run now. Try "
            "again when they have ended."
        )
        return ApiError(429, message, type="tokens", code="rate_limit_exceeded", retry_after=_HELD_SECONDS)

    def refusal(self, by: str, meter: Meter) -> ApiError:
        """Return the error of a request that is refused, or of a response that is ended."""
        whose = _whose(by)
        if self.is_quota:
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


MEASURES: Final = (
    Measure("requests_per_minute", "requests per minute", "requests", MINUTE),
    Measure("tokens_per_minute", "tokens per minute", "tokens", MINUTE),
    Measure("tokens_per_day", "tokens per day", "tokens", DAY),
    Measure("tokens_per_month", "tokens per month", "tokens", MONTH),
    Measure("budget_per_day", "costs per day", "money", DAY),
    Measure("budget_per_month", "costs per month", "money", MONTH),
)


def _whose(by: str) -> str:
    return "all requests" if by == "all" else f"this {by}"


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
