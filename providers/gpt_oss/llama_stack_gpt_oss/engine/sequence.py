"""A request on its way through the engine."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from .cache import Holding

Finish = Literal["stop", "length"]


class TokenMask(Protocol):
    """Which tokens may come next, for one sequence. What decides it lives outside the engine."""

    def allowed(self) -> bytes:
        """A bit for each token of the vocabulary, the lowest bit of a byte first; at least one is set."""

    def accept(self, token: int) -> None:
        """The token, which was allowed, has come."""


@dataclass(frozen=True, slots=True)
class Params:
    """How a sequence is sampled and when it ends.

    seed: the same seed gives the same tokens whatever else is in the batch.
    top_logprobs: how many alternatives to report with each token's log probability; None reports none of it.
    priority: lower goes first. cache_salt: prefixes are shared among equal salts alone.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    top_logprobs: int | None = None
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token; log probability and alternatives where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` holds the prompt and what was sampled; the first `computed` of them are in the KV store.

    unread: how many more the device has drawn, or is about to. gone: nothing more is to come of it.
    leader: a sequence with the same prompt that computes it first.
    """

    id: str
    tokens: list[int]
    prompt_tokens: int
    params: Params
    arrival: int
    mask: TokenMask | None = None
    leader: "Sequence | None" = None
    holding: Holding = field(default_factory=Holding)
    computed: int = 0
    unread: int = 0
    cached: int | None = None
    finish: Finish | None = None
    gone: bool = False

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def length(self) -> int:
        """Tokens, those included that nobody has read."""
        return len(self.tokens) + self.unread

    @property
    def complete(self) -> bool:
        """All of its tokens are drawn, whichever they are."""
        return self.length - self.prompt_tokens >= self.params.max_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first."""
        return self.params.priority, self.arrival

    @property
    def waits_for_leader(self) -> bool:
        leader = self.leader
        return leader is not None and not leader.gone and leader.computed < leader.prompt_tokens

    def append(self, token: int) -> None:
        """Takes the first token that was unread, and sees whether it is the last one."""
        self.unread -= 1
        self.tokens.append(token)
        if self.mask is not None:
            self.mask.accept(token)
        if token in self.params.stop_ids:
            self.finish = "stop"
        elif self.generated >= self.params.max_tokens:
            self.finish = "length"
