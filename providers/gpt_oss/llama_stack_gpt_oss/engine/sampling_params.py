"""How the tokens of a sequence are sampled and scheduled."""

from dataclasses import dataclass, field


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
