"""Construction of an engine from its settings."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from ..engine.cache import Cache, blocks_needed, longest_sequence
from ..engine.config import ModelConfig, read_config
from ..engine.draft_head import DraftHead, DraftHeadWeights, load_draft_head
from ..engine.draft_head_config import DraftHeadConfig, read_draft_head_config
from ..engine.drafts import NgramDrafter
from ..engine.engine import Engine
from ..engine.errors import EngineError, TooLittleMemoryError
from ..engine.graphs import most_verified
from ..engine.kernels import choose, has_fp8
from ..engine.memory import blocks_that_fit, gigabytes
from ..engine.model import Model, block_bytes
from ..engine.parallel import Follower, ParallelOps, Ranks
from ..engine.progress import Progress
from ..engine.runner import ModelRunner
from ..engine.scheduler import Limits
from ..engine.sequence import TokenMask
from ..engine.sharding import WHOLE, Shard
from ..engine.weights import Weights, find_layout, load
from ..masks import GrammarMasks
from ..vocabulary import read_vocabulary
from .grammars import MAX_GRAMMARS
from .rank_processes import rendezvous
from .settings import EngineSettings

SHORTEST_CONTEXT_TOKENS = 1024


class Rank(Protocol):
    """One of the processes that compute each step together: `RankProcesses` is rank 0, the others `RankConnection`."""

    rank: int

    def start(self) -> None:
        """Start the other ranks."""

    def announce(self, step: object) -> None:
        """Send a step from rank 0 to the others."""

    def agree(self, blocks: int) -> int:
        """Return the number of KV cache blocks that all ranks have room for."""


class SingleRank:
    """The only rank of an engine."""

    rank = 0

    def start(self) -> None:
        """Start no other rank."""

    def announce(self, step: object) -> None:
        """Send it to no other rank."""

    def agree(self, blocks: int) -> int:
        """Return the number of this rank."""
        return blocks


ALONE = SingleRank()


class Loaded(NamedTuple):
    """A rank's shard of the model, and what was decided about the engine."""

    model: Model
    draft_head: DraftHead | None
    device: torch.device
    context: int
    blocks: int


def assemble(
    settings: EngineSettings,
    report: Callable[[Progress], None],
    rank: Rank = ALONE,
    open_mask: Callable[[str], TokenMask] | None = None,
) -> Engine:
    """Load the weights, use the remaining memory for the KV cache, and warm up. Raises EngineError.

    open_mask: by default, that of the checkpoint's masks.
    """
    last = Progress(0, 0, 0, 0)

    def report_loaded(progress: Progress) -> None:
        nonlocal last
        last = progress
        report(progress)

    model, draft_head, device, context, blocks = _load(settings, report_loaded, rank)
    verified = most_verified(settings.sequences, settings.drafts)
    limits = Limits(settings.sequences, settings.step_tokens, settings.waiting, verified)
    cache = Cache(blocks, model.config.kv_groups)
    drafts, announce = settings.drafts, rank.announce
    runner = ModelRunner(
        model, device, context, settings.sequences, drafts=drafts, announce=announce, draft_head=draft_head
    )
    runner.warm_up(
        settings.step_tokens,
        lambda done, total: report(replace(last, warm_up_steps_done=done, warm_up_steps_total=total)),
    )
    drafter = runner.drafter or (NgramDrafter(drafts) if drafts else None)
    return Engine(runner, cache, limits, context, open_mask or masks_of(settings).open, drafter)


def assemble_follower(settings: EngineSettings, rank: Rank) -> Follower:
    """Load the shard of a rank other than 0, which warms up with rank 0's steps. Raises EngineError."""
    model, _, device, context, _ = _load(settings, lambda _: None, rank)
    ranks = Ranks(settings.tensor_parallel_size)
    return Follower(model, device, context, settings.sequences, settings.drafts, ranks)


def _load(settings: EngineSettings, report: Callable[[Progress], None], rank: Rank) -> Loaded:
    folder = find_layout(Path(settings.checkpoint))
    whole = read_config(folder)
    shard = Shard(rank.rank, settings.tensor_parallel_size)
    shard.check(whole)
    config = shard.config(whole)
    device = select_device(settings.device, shard)
    rank.start()  # what may fail on all ranks has not
    dtype = _dtype(settings.dtype, device)
    kv_dtype = _kv_dtype(settings.kv_dtype, dtype, device)
    ops = choose(config, device, dtype, settings.dependent_launch)
    if shard.size > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the ranks are on one machine
        ops = ParallelOps(ops, Ranks.join(shard, rendezvous(settings), device), rank.announce)
    weights = load(folder, whole, device, dtype, report, shard)
    context = min(settings.context or config.context, config.context)
    # Drafts are tokens of the step that rank 0 announces: it runs the whole head, on states that every rank has.
    head = _load_draft_head(settings, config, weights) if rank.rank == 0 else None
    block_size = block_bytes(config, kv_dtype) + (head[0].block_bytes(dtype) if head else 0)
    blocks = rank.agree(_block_count(settings, config, device, block_size, context))
    model = Model(config, weights, ops, blocks, context, kv_dtype, head[0].features if head else ())
    draft_head = DraftHead(*head, config, blocks, context) if head else None
    return Loaded(model, draft_head, device, context, blocks)


def _load_draft_head(
    settings: EngineSettings, config: ModelConfig, weights: Weights
) -> tuple[DraftHeadConfig, DraftHeadWeights] | None:
    if settings.draft_head is None:
        return None
    folder = Path(settings.draft_head)
    head = read_draft_head_config(folder, config)
    return head, load_draft_head(folder, head, weights)


def select_device(name: str, shard: Shard = WHOLE) -> torch.device:
    """Return the device, selected for this process: Triton launches its kernels on the selected one.

    The named device is that of rank 0; the other ranks have the next ones.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise EngineError(f"The device is set to {name}, and torch finds no GPU: repair the driver, or set it to cpu")
    first, count = device.index or 0, torch.cuda.device_count()
    if first >= count:
        raise EngineError(f"The device is set to {name}, and the last GPU that torch finds is cuda:{count - 1}")
    if first + shard.size > count:
        raise EngineError(
            f"tensor_parallel_size is {shard.size}, and torch finds {count - first} GPUs from cuda:{first} on:"
            " lower it, or set the device to an earlier one"
        )
    device = torch.device("cuda", first + shard.rank)
    torch.cuda.set_device(device)
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16


def _kv_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if name == "auto":
        return dtype
    if not has_fp8(device):
        raise EngineError(f"kv_dtype is set to fp8, and {device} has no FP8: set it to auto")
    return torch.float8_e4m3fn


def _block_count(settings: EngineSettings, config: ModelConfig, device: torch.device, size: int, context: int) -> int:
    """Return the number of blocks of a size: as many as fit, but no more than the maximum batch can use."""
    step = settings.step_tokens
    most = settings.sequences * blocks_needed(context, config.kv_groups, step)
    # Ranks on a CPU share its memory.
    share = settings.memory_share / (settings.tensor_parallel_size if device.type == "cpu" else 1)
    blocks = min(most, blocks_that_fit(device, share, size))
    shortest = min(context, settings.context or SHORTEST_CONTEXT_TOKENS)
    needed = blocks_needed(shortest, config.kv_groups, step)
    if blocks < needed:
        raise TooLittleMemoryError(
            f"After the weights, {device} has room for {longest_sequence(blocks, config.kv_groups, step):,} tokens of"
            f" context in its share of {settings.memory_share:.0%}, and {shortest:,} ({gigabytes(needed * size)}) are"
            " needed: raise memory_share, lower context_length, or use a larger device"
        )
    return blocks


def masks_of(settings: EngineSettings) -> GrammarMasks:
    """Return the masks of a checkpoint, whose vocabulary is not read yet. CheckpointError: it has no configuration."""
    folder = find_layout(Path(settings.checkpoint))
    return GrammarMasks(partial(read_vocabulary, folder), read_config(folder).vocabulary, kept=MAX_GRAMMARS)
