"""Execution of steps on the device."""

from collections.abc import Callable
from collections.abc import Sequence as Series

import torch

from .batch import Drawn, make_batch
from .errors import TooLittleMemoryError
from .graphs import DecodeSteps, Record, recorder
from .model import Model
from .sampler import Report, redraw, sampled
from .sampler import report as report_logprobs
from .scheduler import ScheduledTokens
from .sequence import Sampled, Sequence
from .warm_up import demanding_sequences, warm_up_batches, warm_up_steps


class Step:
    """A started step. Its sampled tokens are copied to the host asynchronously."""

    def __init__(self, tokens: torch.Tensor, made: Report | None, sequences: Series[Sequence]) -> None:
        self._sequences = sequences
        self._tokens = _brought(tokens)
        self._report = made and Report(_brought(made.chosen), _brought(made.ids), _brought(made.values))
        self._there = torch.cuda.current_stream(tokens.device).record_event() if tokens.is_cuda else None

    def sampled(self) -> list[Sampled]:
        """Wait for this step only, not for later ones."""
        if self._there is not None:
            self._there.synchronize()
        return sampled(self._tokens, self._report, self._sequences)


class ModelRunner:
    """Runs the engine's steps on a model. Decode steps are captured as graphs, by default if the device supports it.

    Sampled tokens stay on the device as the next step's input, so it can start before the host has read them.
    """

    def __init__(
        self, model: Model, device: torch.device, context: int, sequences: int = 64, record: Record | None = None
    ) -> None:
        """Create a runner for steps of at most `sequences` sequences."""
        self.device = device
        record = record or recorder(device)
        self._model = model
        self._decodes = DecodeSteps(model, context, sequences, record) if record else None
        self._forward = self._decodes.forward if self._decodes else model.forward
        self._drawn = Drawn(torch.empty(0, dtype=torch.long, device=device), {})

    @torch.inference_mode()
    def warm_up(self, step_tokens: int, report: Callable[[int, int], None]) -> None:
        """Compile every kernel and capture every graph, if there are any; report the steps done and their number.

        step_tokens: the maximum number of tokens in a step. TooLittleMemoryError: the largest step does not fit.
        """
        if self._decodes is None:
            return
        sizes = self._decodes.sizes
        try:
            for done, batch in enumerate(warm_up_batches(self._model, sizes, step_tokens), 1):
                head = self._forward(batch)
                if head.logits is not None:
                    sequences = demanding_sequences(len(head.tokens))
                    redraw(head.tokens, head.logits, batch.temperatures, batch.seeds, sequences)
                    report_logprobs(head.logits, head.tokens, sequences)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                report(done, warm_up_steps(sizes))
        except torch.OutOfMemoryError as error:
            raise TooLittleMemoryError(
                f"{self.device} has too little memory for steps of {step_tokens:,} tokens next to the KV cache:"
                " lower memory_share, prefill_tokens or max_batch"
            ) from error

    @torch.inference_mode()
    def start(self, scheduled: Series[ScheduledTokens]) -> Step:
        """Start computing the scheduled tokens, and the next token of each sequence scheduled up to its last token."""
        batch = make_batch(scheduled, self._drawn, self.device)
        head = self._forward(batch)
        last = [work for work in scheduled if work.last]
        ready = [work.sequence for work in last]
        made = None
        if head.logits is not None:
            redraw(head.tokens, head.logits, batch.temperatures, batch.seeds, ready)
            made = report_logprobs(head.logits, head.tokens, ready)
        places = {work.sequence: (work.start + work.count, row) for row, work in enumerate(last)}
        self._drawn = Drawn(head.tokens, places)
        return Step(head.tokens, made, ready)

    def run(self, scheduled: Series[ScheduledTokens]) -> list[Sampled]:
        return self.start(scheduled).sampled()


def _brought(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to host memory, asynchronously from a GPU."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
