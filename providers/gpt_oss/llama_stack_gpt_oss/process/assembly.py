"""Construction of an engine from its settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ..engine.cache import Cache, longest_sequence, pages_needed
from ..engine.config import ModelConfig, read_config
from ..engine.drafts import NgramDrafter
from ..engine.engine import Engine
from ..engine.errors import EngineError, TooLittleMemoryError
from ..engine.graphs import most_verified
from ..engine.kernels import choose
from ..engine.memory import gigabytes, pages_that_fit
from ..engine.model import Model, page_bytes
from ..engine.progress import Progress
from ..engine.runner import ModelRunner
from ..engine.scheduler import Limits
from ..engine.sequence import TokenMask
from ..engine.weights import find_layout, load
from .settings import EngineSettings

SHORTEST_CONTEXT_TOKENS = 1024


def assemble(settings: EngineSettings, report: Callable[[Progress], None]) -> Engine:
    """Load the weights, use the remaining memory for the KV cache, and warm up. Raises EngineError."""
    folder = find_layout(Path(settings.checkpoint))
    config = read_config(folder)
    device = select_device(settings.device)
    dtype = _dtype(settings.dtype, device)
    loaded = Progress(0, 0, 0, config.layers)

    def report_loaded(progress: Progress) -> None:
        nonlocal loaded
        loaded = progress
        report(progress)

    weights = load(folder, config, device, dtype, report_loaded)
    context = min(settings.context or config.context, config.context)
    pages = _pages(settings, config, device, dtype, context)
    model = Model(config, weights, choose(config, device, dtype), pages, context)
    verified = most_verified(settings.sequences, settings.drafts)
    limits = Limits(settings.sequences, settings.step_tokens, settings.waiting, verified)
    cache = Cache(pages, config.kv_groups)
    runner = ModelRunner(model, device, context, settings.sequences, drafts=settings.drafts)
    runner.warm_up(
        settings.step_tokens,
        lambda done, total: report(replace(loaded, warm_up_steps_done=done, warm_up_steps_total=total)),
    )
    drafter = NgramDrafter(settings.drafts) if settings.drafts else None
    return Engine(runner, cache, limits, context, _masks(folder, config), drafter)


def select_device(name: str) -> torch.device:
    """Return the device, selected for this process: Triton launches its kernels on the selected one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise EngineError(f"The device is set to {name}, and torch finds no GPU: repair the driver, or set it to cpu")
    device = torch.device("cuda", device.index or 0)
    count = torch.cuda.device_count()
    if device.index >= count:
        raise EngineError(f"The device is set to {name}, and the last GPU that torch finds is cuda:{count - 1}")
    torch.cuda.set_device(device)
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16


def _pages(
    settings: EngineSettings, config: ModelConfig, device: torch.device, dtype: torch.dtype, context: int
) -> int:
    """Return the number of blocks: as many as fit, but no more than the maximum batch can use."""
    size, step = page_bytes(config, dtype), settings.step_tokens
    most = settings.sequences * pages_needed(context, config.kv_groups, step)
    pages = min(most, pages_that_fit(device, settings.memory_share, size))
    shortest = min(context, settings.context or SHORTEST_CONTEXT_TOKENS)
    needed = pages_needed(shortest, config.kv_groups, step)
    if pages < needed:
        raise TooLittleMemoryError(
            f"After the weights, {device} has room for {longest_sequence(pages, config.kv_groups, step):,} tokens of"
            f" context in its share of {settings.memory_share:.0%}, and {shortest:,} ({gigabytes(needed * size)}) are"
            " needed: raise memory_share, lower context_length, or use a larger device"
        )
    return pages


def _masks(folder: Path, config: ModelConfig) -> Callable[[str], TokenMask]:
    """Return the factory of masks. The vocabulary is loaded on first use."""
    opened: list[Callable[[str], TokenMask]] = []

    def open_mask(grammar: str) -> TokenMask:
        if not opened:
            from ..masks import GrammarMasks
            from ..vocabulary import read_vocabulary

            opened.append(GrammarMasks(read_vocabulary(folder), config.vocabulary).open)
        return opened[0](grammar)

    return open_mask
