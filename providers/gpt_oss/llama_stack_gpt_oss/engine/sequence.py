"""The state of a sequence in the engine."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from .cache import KVCacheBlocks

Finish = Literal["stop", "length"]


class TokenMask(Protocol):
    """The tokens that may come next in one sequence. Implemented outside the engine."""

    def allowed(self) -> bytes:
        """Return a bit per token of the vocabulary, the lowest bit of a byte first; at least one is set."""

    def accept(self, token: int) -> None:
        """Advance by a token that was allowed."""

    def rollback(self, count: int) -> None:
        """Go back by the last tokens that were accepted."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a sequence.

    seed: equal seeds give equal tokens in any batch. top_k, min_p: 0 for no restriction.
    logit_bias: pairs of a token and what is added to its logit. frequency_penalty is subtracted from a token's logit
    for each time that the token was generated, presence_penalty once; neither counts the tokens in `unpenalised`.
    top_logprobs: number of alternatives to report with each token's log probability; None for no report.
    priority: lower goes first. cache_salt: prefixes are shared only among equal salts.
    keeps_logits: the logits of its rows are needed after they were sampled; stored, since each step reads it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    unpenalised: frozenset[int] = frozenset()
    seed: int = 0
    top_logprobs: int | None = None
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    keeps_logits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keeps_logits", self.top_logprobs is not None or self.is_restricted)

    @property
    def is_adjusted(self) -> bool:
        """Whether anything is added to the logits."""
        return bool(self.logit_bias or self.frequency_penalty or self.presence_penalty)

    @property
    def is_restricted(self) -> bool:
        """Whether rows are sampled again from kept logits, even without a mask."""
        narrow = self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)
        return narrow or self.is_adjusted


class Sampled(NamedTuple):
    """One sampled token; with log probability and alternatives if requested."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False, slots=True)
class Sequence:
    """A sequence. `tokens` has the prompt and the sampled tokens; the first `computed` of them are in the KV cache.

    unread: further tokens sampled, or being sampled, on the device. gone: finished or cancelled.
    leader: a sequence with the same prompt that computes it first. queued_at: when it last joined the queue.
    """

    id: str
    tokens: list[int]
    prompt_tokens: int
    params: SamplingParams
    arrival: int
    mask: TokenMask | None = None
    leader: "Sequence | None" = None
    blocks: KVCacheBlocks = field(default_factory=KVCacheBlocks)
    computed: int = 0
    unread: int = 0
    cached: int | None = None
    finish: Finish | None = None
    gone: bool = False
    queued_at: float = 0.0

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def length(self) -> int:
        """Number of tokens, including unread ones."""
        return len(self.tokens) + self.unread

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key of the scheduling order."""
        return self.params.priority, self.arrival

    @property
    def waits_for_leader(self) -> bool:
        leader = self.leader
        return leader is not None and not leader.gone and leader.computed < leader.prompt_tokens

    def append(self, token: int) -> None:
        """Append the first unread token, and check whether the sequence ends with it."""
        self.unread -= 1
        self.tokens.append(token)
        if self.mask is not None:
            self.mask.accept(token)
        if token in self.params.stop_ids:
            self.finish = "stop"
        elif len(self.tokens) - self.prompt_tokens >= self.params.max_tokens:
            self.finish = "length"
