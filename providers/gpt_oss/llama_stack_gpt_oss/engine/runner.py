"""Execution of steps on the device."""

from collections.abc import Callable
from collections.abc import Sequence as Series
from functools import partial

import torch

from .adjustments import Adjustments
from .batch import Batch, StepInput, pack
from .draft_head import DraftHead
from .errors import TooLittleMemoryError
from .graphs import Capture, DecodeSteps, Steps, capture_for
from .head_drafter import HeadDrafter
from .model import Model
from .ops import HeadOutput
from .sampler import Report, restrictions, sampled
from .sampler import report as report_logprobs
from .scheduler import ScheduledTokens
from .sequence import Sampled
from .staging import Staging
from .state import Entries, State
from .warm_up import demanding_works, scratch_step, warm_up_steps

Announce = Callable[[StepInput | None], None]  # None: the tokens of the last step have been sampled again


def announce_to_none(step: StepInput | None) -> None:
    """Do nothing: there is no other rank."""


class Sampler:
    """Samples rows again that masks, min_p, top_k or top_p restrict or penalties and biases change.

    It computes log probabilities too.
    """

    def __init__(self, model: Model, state: State, staging: Staging) -> None:
        self._model = model
        self._state = state
        self._staging = staging
        self._adjustments = Adjustments(state.spare + 1, model.config.vocabulary, staging.device)

    def sample(
        self, head: HeadOutput, batch: Batch, works: Series[ScheduledTokens], entries: Series[int]
    ) -> Report | None:
        """Replace the tokens of restricted rows, here and in the state. All earlier tokens have been read."""
        if head.logits is None:
            return None
        packed = restrictions(works, entries, self._adjustments)
        if packed.rows:
            numbers = self._staging.send(packed.numbers)
            self._model.redraw(head, batch, packed.sent(numbers, self._adjustments.table))
            self._state.drawn.index_copy_(0, batch.owners[: len(head.tokens)], head.tokens)
        return report_logprobs(head.logits, head.tokens, works)


class Step:
    """A started step. Its sampled tokens are copied to the host asynchronously."""

    def __init__(
        self,
        head: HeadOutput,
        batch: Batch,
        works: Series[ScheduledTokens],
        entries: Series[int],
        sampler: Sampler,
        computed: Callable[[HeadOutput, Batch, Series[ScheduledTokens]], None] | None,
    ) -> None:
        """Create the step. computed: called when the tokens are sampled."""
        self._computed = computed
        self._head = head
        self._batch = batch
        self._works = works
        self._entries = entries
        self._sampler = sampler
        self._tokens: torch.Tensor | None = None
        self._report: Report | None = None
        self._there: torch.cuda.Event | None = None

    @torch.inference_mode()
    def sample(self) -> None:
        """Start sampling restricted rows and the copy to the host, unless that was done."""
        if self._tokens is not None:
            return
        made = self._sampler.sample(self._head, self._batch, self._works, self._entries)
        if self._computed is not None:
            self._computed(self._head, self._batch, self._works)
        tokens = self._head.tokens
        self._tokens = _brought(tokens)
        self._report = made and Report(_brought(made.chosen), _brought(made.ids), _brought(made.values))
        self._there = torch.cuda.current_stream(tokens.device).record_event() if tokens.is_cuda else None

    def sampled(self) -> list[Sampled]:
        """Wait for this step only, not for later ones."""
        self.sample()
        assert self._tokens is not None
        if self._there is not None:
            self._there.synchronize()
        return sampled(self._tokens, self._report, self._works)


class ModelRunner:
    """Runs the engine's steps on a model. Decode steps are captured as graphs, by default if the device supports it.

    Sampled tokens stay on the device as the next step's input, so it can start before the host has read them.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        context: int,
        sequences: int = 64,
        capture: Capture | None = None,
        drafts: int = 0,
        announce: Announce = announce_to_none,
        draft_head: DraftHead | None = None,
    ) -> None:
        """Create a runner for steps of at most `sequences` sequences of up to `context` tokens.

        drafts: the maximum number of a sequence's drafts in a step. announce: called with each step before it is
        computed. draft_head: computes drafts; the model returns its features.
        """
        self.device = device
        capture = capture or capture_for(device)
        self._context = context
        self._drafts = drafts
        self._state = State(len(model.config.kv_groups), sequences, context, model.scratch, device)
        self._entries = Entries(self._state)
        self.drafter = HeadDrafter(draft_head, self._state, self._entries, drafts) if draft_head else None
        staging = Staging(device)
        self._sampler = Sampler(model, self._state, staging)
        self._decodes = DecodeSteps(model, self._state, staging, sequences, capture, drafts) if capture else None
        self._steps = self._decodes or Steps(model, self._state, staging)
        self._announce = announce
        self._started: Step | None = None

    @torch.inference_mode()
    def warm_up(self, step_tokens: int, report: Callable[[int, int], None]) -> None:
        """Compile every kernel and capture every graph, if there are any; report the steps done and their number.

        step_tokens: the maximum number of tokens in a step. TooLittleMemoryError: the largest step does not fit.
        """
        if self._decodes is None:
            return
        decodes = self._decodes
        steps = warm_up_steps(decodes.sizes, step_tokens, self._context, decodes.verified, 1 + self._drafts)
        try:
            for done, step in enumerate(steps, 1):
                packed = scratch_step(step, self._state.spare)
                head, batch = self._forward(packed)
                self._sampler.sample(head, batch, demanding_works(len(head.tokens)), packed.fields.owners)
                if self.drafter is not None:
                    self.drafter.warm_up(head, batch)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                report(done, len(steps))
        except torch.OutOfMemoryError as error:
            raise TooLittleMemoryError(
                f"{self.device} has too little memory for steps of {step_tokens:,} tokens next to the KV cache:"
                " lower memory_share, prefill_tokens or max_batch"
            ) from error

    @torch.inference_mode()
    def start(self, scheduled: Series[ScheduledTokens]) -> Step:
        """Start computing the scheduled tokens.

        A token is sampled after each sequence that is scheduled up to its last token, and after each of its drafts.
        """
        if self._started is not None:
            self._started.sample()  # its tokens are the input of this step
        drafted = self._drafts and any(work.drafts for work in scheduled)
        width = 1 + self._drafts if drafted else 1
        packed = pack(scheduled, *self._entries.assign(scheduled), width)
        head, batch = self._forward(packed)
        drawing = scheduled if packed.is_decode else [work for work in scheduled if work.last]
        computed = partial(self.drafter.computed, ends=_prompt_ends(scheduled)) if self.drafter else None
        self._started = Step(head, batch, drawing, packed.fields.owners, self._sampler, computed)
        return self._started

    def run(self, scheduled: Series[ScheduledTokens]) -> list[Sampled]:
        return self.start(scheduled).sampled()

    def _forward(self, step: StepInput) -> tuple[HeadOutput, Batch]:
        self._announce(step)
        return self._steps.forward(step)


def _prompt_ends(scheduled: Series[ScheduledTokens]) -> list[tuple[int, int]]:
    """Return the last row of each part of a prompt with a token after it, and that token."""
    ends, rows = [], 0
    for work in scheduled:
        rows += work.count + len(work.drafts)
        if not work.last:
            ends.append((rows - 1, work.sequence.tokens[work.start + work.count]))
    return ends


def _brought(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to host memory, asynchronously from a GPU."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
