"""The state of a sequence in the engine."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from .cache import KVCacheBlocks
from .sampling_params import SamplingParams

Finish = Literal["stop", "length", "grammar"]
"""Why a sequence ended. grammar: its mask failed."""


class TokenMask(Protocol):
    """The tokens that may come next in one sequence. Implemented outside the engine."""

    @property
    def failed(self) -> bool:
        """Whether a limit was exceeded, so that the last mask, or the next one, does not follow the grammar."""

    def allowed(self) -> bytes:
        """Return a bit per token of the vocabulary, the lowest bit of a byte first; at least one is set."""

    def accept(self, token: int) -> None:
        """Advance by a token that was allowed."""

    def rollback(self, count: int) -> None:
        """Go back by the last tokens that were accepted."""


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
        if self.mask is not None and self.mask.failed:
            self.finish = "grammar"
        elif token in self.params.stop_ids:
            self.finish = "stop"
        elif len(self.tokens) - self.prompt_tokens >= self.params.max_tokens:
            self.finish = "length"
