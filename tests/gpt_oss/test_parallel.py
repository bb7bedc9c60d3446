"""Tensor parallelism: shards, and engines of two and four processes on the CPU, connected by gloo."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from queue import Queue
from typing import NoReturn

import pytest
import torch

from llama_stack_gpt_oss.engine.config import ModelConfig, read_config
from llama_stack_gpt_oss.engine.engine import Request, Update
from llama_stack_gpt_oss.engine.errors import EngineError
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.kernels.triton_ops import TritonOps
from llama_stack_gpt_oss.engine.ops import Ops, Routed
from llama_stack_gpt_oss.engine.parallel import ParallelOps, Ranks
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.sharding import Shard
from llama_stack_gpt_oss.engine.weights import Experts, Layer, Weights, load
from llama_stack_gpt_oss.process.assembly import assemble
from llama_stack_gpt_oss.process.client import EngineClient, EngineDiedError
from llama_stack_gpt_oss.process.rank_processes import RankProcesses, rendezvous
from llama_stack_gpt_oss.process.settings import EngineSettings
from tests.support.proc import children_of, has_ended

from .support.checkpoints import Size, random_tensors, write_hugging_face
from .support.engines import CPU, drain
from .support.processes import kill, settings, wait_for
from .support.vocabulary import write_tokenizer
from .test_draft_head import write_head
from .test_kernels import close, draws, normal
from .test_weights import fine_tune

# What the tests share takes longer to start than most of them run.
pytestmark = pytest.mark.day(4)

UNEVEN = Size(intermediate=96, layers=2)  # three groups of MXFP4
SHARDS = (Shard(0, 2), Shard(1, 2))
LONG = SamplingParams(max_tokens=1500, temperature=0.0)


# -- shards ------------------------------------------------------------------------


def shards_of(folder: Path) -> tuple[ModelConfig, Weights, list[Weights]]:
    config = read_config(folder)
    whole, *parts = (load(folder, config, CPU, torch.float32, lambda _: None, shard) for shard in (Shard(), *SHARDS))
    return config, whole, parts


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Weights, list[Weights]]:
    folder = tmp_path_factory.mktemp("uneven")
    return shards_of(write_hugging_face(folder, random_tensors(UNEVEN), UNEVEN))


def joined(one: torch.Tensor, other: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return both parts, joined along the dimension in which they are parts; what is on both ranks is returned once."""
    if one.shape == other.shape == whole.shape:
        return one
    [dimension] = [place for place, side in enumerate(whole.shape) if one.shape[place] != side]
    return torch.cat((one, other), dim=dimension)


@pytest.mark.parametrize("layout", ["hugging_face", "original", "fine_tune"])
def test_shards_join_to_whole_weights(
    layout: str, checkpoint: Path, original_checkpoint: Path, size: Size, tmp_path: Path
) -> None:
    folders = {"hugging_face": checkpoint, "original": original_checkpoint}
    folder = folders.get(layout) or fine_tune(tmp_path / "tuned", size, lambda values: values)
    config, whole, (one, other) = shards_of(folder)
    assert torch.equal(joined(one.unembedding, other.unembedding, whole.unembedding), whole.unembedding)
    assert (one.first_token, other.first_token) == (0, config.vocabulary // 2)
    for layers in zip(whole.layers, one.layers, other.layers, strict=True):
        of_whole, *of_parts = (tensors_of(layer) for layer in layers)
        for name, expected in of_whole.items():
            first, second = (found[name] for found in of_parts)
            if name in ("qkv", "qkv_bias"):
                widths = [config.query_width, config.kv_width, config.kv_width]
                heads = [part.split([width // 2 for width in widths]) for part in (first, second)]
                found = torch.cat([torch.cat(pair) for pair in zip(*heads, strict=True)])
            elif name in ("out_bias", "down.bias"):
                found = first + second
                assert not second.any()
            else:
                found = joined(first, second, expected)
            assert torch.equal(found, expected), name


def tensors_of(layer: Layer) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for field in fields(Layer):
        value = getattr(layer, field.name)
        if isinstance(value, Experts):
            found |= {f"{field.name}.{each.name}": getattr(value, each.name) for each in fields(Experts)}
            found[f"{field.name}.scales"] = value.scales[..., : value.words.shape[2]]  # without those that align rows
        else:
            found[field.name] = value
    return found


def test_mxfp4_groups_stay_whole_if_they_are_uneven(uneven: tuple[ModelConfig, Weights, list[Weights]]) -> None:
    config, _, parts = uneven
    assert [shard.config(config).intermediate for shard in SHARDS] == [32, 64]
    assert [part.layers[0].up.words.shape[1] for part in parts] == [64, 128]
    assert [part.layers[0].down.words.shape[2] for part in parts] == [1, 2]


@pytest.mark.parametrize("kind", ["torch", "kernels"])
@pytest.mark.parametrize("rows", [1, 17])
def test_sum_of_shards_is_the_whole_layer(
    uneven: tuple[ModelConfig, Weights, list[Weights]], kind: str, rows: int
) -> None:
    """The router is on both ranks, and each has a part of every expert."""
    config, whole, parts = uneven

    def ops(of: ModelConfig) -> Ops:
        return TorchOps(of) if kind == "torch" else TritonOps(of, wide=True)

    x = normal(rows, config.hidden)
    mixed = normal(rows, config.query_width)
    nothing = torch.zeros_like(x)

    def experts(by: Ops, layer: Layer, residual: torch.Tensor) -> torch.Tensor:
        routed: Routed = by.route(x, layer)
        return by.down(by.up(routed, layer), routed, residual, layer)

    attended, expert_sum = x.clone(), x.clone()
    for shard, part in zip(SHARDS, parts, strict=True):
        mine, layer = ops(shard.config(config)), part.layers[1]
        half = mixed[:, shard.index("out", config)[1]].contiguous()
        attended += mine.out(half, nothing, layer)
        expert_sum += experts(mine, layer, nothing)
    reference = TorchOps(config)
    close(attended, reference.out(mixed, x, whole.layers[1]))
    close(expert_sum, experts(reference, whole.layers[1], x))


@pytest.mark.parametrize("kind", ["torch", "kernels"])
def test_best_token_of_all_shards_is_that_of_whole_vocabulary(
    uneven: tuple[ModelConfig, Weights, list[Weights]], kind: str
) -> None:
    """The noise of a token does not depend on the rank that has it."""
    config, whole, parts = uneven
    ranks: list[Ops] = [TorchOps(config) if kind == "torch" else TritonOps(config, wide=True) for _ in parts]
    x, step = normal(20, config.hidden), draws(20, kept=True)
    found = [ops.head(x, part, step) for ops, part in zip(ranks, parts, strict=True)]
    scores = torch.stack([head.scores for head in found if head.scores is not None])
    tokens = torch.stack([head.tokens for head in found]).gather(0, scores.argmax(0, keepdim=True))[0]
    expected = TorchOps(config).head(x, whole, step)
    assert tokens.tolist() == expected.tokens.tolist()
    assert {token < config.vocabulary // 2 for token in tokens.tolist()} == {True, False}
    assert expected.logits is not None
    close(torch.cat([head.logits for head in found if head.logits is not None], dim=1), expected.logits)


class TwoRanks(Ranks):
    """Ranks of which the other has the negative of each part."""

    def __init__(self) -> None:
        super().__init__(2)

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack((part, -part))


def test_steps_share_memory_of_logits_of_all_ranks(uneven: tuple[ModelConfig, Weights, list[Weights]]) -> None:
    """Each captured step would have its own otherwise."""
    config, _, (part, _) = uneven
    ops, alone = ParallelOps(TorchOps(config), TwoRanks(), lambda _: None), TorchOps(config)
    memories = set()
    for rows in (20, 3):
        x, step = normal(rows, config.hidden), draws(rows, kept=True)
        logits, mine = ops.head(x, part, step).logits, alone.head(x, part, step).logits
        assert logits is not None
        assert mine is not None
        assert torch.equal(logits, torch.cat((mine, -mine), dim=1))
        memories.add(logits.data_ptr())
    assert len(memories) == 1


def test_number_of_ranks_that_does_not_divide_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(EngineError, match=r"size is 3, which does not divide .* set it to one of 1, 2"):
        Shard(0, 3).check(read_config(checkpoint))


# -- processes ---------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def engine_threads() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint with the whole vocabulary, for grammars."""
    size = Size(vocabulary=201088)
    folder = write_hugging_face(tmp_path_factory.mktemp("words"), random_tensors(size), size)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, words: Path) -> EngineSettings:
    """The settings of the engine of two processes that the tests share. A step has at most 256 tokens."""
    return settings(tmp_path_factory.mktemp("two"), words, step_tokens=256, drafts=3, tensor_parallel_size=2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    """The settings of an engine of four processes. The last one has two of the five groups of each expert."""
    size = Size(vocabulary=201088, query_heads=8, kv_heads=4, intermediate=160)
    folder = write_hugging_face(tmp_path_factory.mktemp("wide"), random_tensors(size), size)
    write_tokenizer(folder)
    state = tmp_path_factory.mktemp("four")
    return settings(state, folder, step_tokens=256, drafts=3, tensor_parallel_size=4)


def prompt(length: int) -> list[int]:
    return [(place * 7919 + length) % 199998 for place in range(length)]


REQUESTS = [
    Request(("greedy",), prompt(5), SamplingParams(max_tokens=20, temperature=0.0, top_logprobs=20)),
    Request(("long",), prompt(700), SamplingParams(max_tokens=12, temperature=0.0, top_logprobs=20)),
    Request(("warm-1", "warm-2"), prompt(70), SamplingParams(max_tokens=20, seed=5)),
    Request(("narrow",), prompt(9), SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, top_k=50, seed=7)),
    Request(
        ("penalised",),
        prompt(33),
        SamplingParams(max_tokens=20, frequency_penalty=1.5, logit_bias=((17, 4.0),), seed=8),
    ),
    Request(("bound",), prompt(12), SamplingParams(max_tokens=20, seed=9), "start: /[a-f ]{5,40}/"),
]
AGAIN = Request(("again",), prompt(700), SamplingParams(max_tokens=12, temperature=0.0, top_logprobs=20))


async def updates(client: EngineClient, request: Request) -> dict[str, list[Update]]:
    found: dict[str, list[Update]] = {name: [] for name in request.ids}
    async for update in client.generate(request):
        found[update.id].append(update)
    return found


def answers_of_one_rank(of: EngineSettings) -> dict[str, list[Update]]:
    """Return the answers of an engine in this process: to all requests at once, and then to one of them again."""
    engine = assemble(replace(of, tensor_parallel_size=1), lambda _: None)
    found: dict[str, list[Update]] = {}
    for requests in (REQUESTS, [AGAIN]):
        for request in requests:
            engine.add(request)
        for update in drain(engine):
            found.setdefault(update.id, []).append(update)
    return found


@pytest.fixture(scope="module")
def alone(two: EngineSettings) -> dict[str, list[Update]]:
    """The answers of one rank with the settings of two."""
    return answers_of_one_rank(two)


def numbers_of(update: Update) -> list[float]:
    """Return the log probabilities of an update; none if they were not requested."""
    sampled = update.sampled
    own = [] if sampled.logprob is None else [sampled.logprob]
    return own + [value for _, value in sampled.top]


async def compare_with_one_rank(client: EngineClient, alone: dict[str, list[Update]]) -> None:
    """Prompts and decodes in one batch, all ways of sampling, a grammar, and a prefix that is found in the cache.

    The sums of ranks have another order, and which requests share a batch depends on the time: so numbers are close.
    """
    together = await asyncio.gather(*(updates(client, request) for request in REQUESTS))
    divided = {name: each for answer in together for name, each in answer.items()} | await updates(client, AGAIN)
    assert divided.keys() == alone.keys()
    for name, expected in alone.items():
        found = divided[name]
        assert [each.sampled.token for each in found] == [each.sampled.token for each in expected], name
        assert [each.cached for each in found] == [each.cached for each in expected], name
        for one, other in zip(found, expected, strict=True):
            numbers = [numbers_of(each) for each in (one, other)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-4), name
    assert divided["again"][0].cached >= 640
    assert alone["warm-1"] != alone["warm-2"]


async def test_two_ranks_answer_as_one(client: EngineClient, alone: dict[str, list[Update]]) -> None:
    await compare_with_one_rank(client, alone)


async def test_four_ranks_answer_as_one_until_one_is_killed(four: EngineSettings) -> None:
    client = EngineClient(four, 60, patience_seconds=120)
    try:
        await asyncio.to_thread(client.start)
        await compare_with_one_rank(client, answers_of_one_rank(four))
        pid = (await client.ready()).pid
        running = client.generate(replace(REQUESTS[0], params=LONG))
        await anext(running)
        ranks = ranks_of(pid)
        assert len(ranks) == 3
        kill(ranks[-1])
        with pytest.raises(EngineDiedError, match=r"Rank \d of the gpt-oss engine's 4 "):
            async for _ in running:
                pass
        await asyncio.to_thread(wait_for, lambda: all(map(has_ended, [pid, *ranks])))
    finally:
        await client.close()


async def test_two_ranks_with_draft_head_answer_as_one(
    two: EngineSettings, alone: dict[str, list[Update]], tmp_path: Path
) -> None:
    """Rank 0 runs the head, and the other one verifies its drafts too."""
    drafting = replace(two, folder=str(tmp_path), draft_head=str(write_head(tmp_path / "head")))
    client = EngineClient(drafting, 60, patience_seconds=120)
    try:
        await asyncio.to_thread(client.start)
        found = (await updates(client, REQUESTS[0])) | (await updates(client, REQUESTS[-1]))
        assert (await client.metrics()).drafted_tokens > 0
    finally:
        await client.close()
    for name, answer in found.items():
        assert [each.sampled.token for each in answer] == [each.sampled.token for each in alone[name]], name


def ranks_of(pid: int) -> list[int]:
    """Return the processes of an engine's other ranks."""
    return children_of(pid, "process.follower")


@pytest.fixture
async def client(two: EngineSettings) -> AsyncIterator[EngineClient]:
    created = EngineClient(two, 60, patience_seconds=120)
    try:
        await asyncio.to_thread(created.start)
        yield created
    finally:
        await created.close()


async def test_killed_rank_fails_requests_with_sentence_and_engine_is_restarted(client: EngineClient) -> None:
    pid = (await client.ready()).pid
    [rank] = ranks_of(pid)
    running = client.generate(replace(REQUESTS[0], params=LONG))
    await anext(running)
    kill(rank)
    with pytest.raises(EngineDiedError, match=r"Rank 1 of the gpt-oss engine's 2 was killed by SIGKILL, .* again"):
        async for _ in running:
            pass
    found = await updates(client, REQUESTS[0])
    assert len(found["greedy"]) == 20
    assert (await client.ready()).pid != pid
    assert has_ended(pid)


async def test_killed_rank_ends_an_idle_engine(client: EngineClient) -> None:
    """No step would notice it."""
    pid = (await client.ready()).pid
    kill(ranks_of(pid)[0])
    await asyncio.to_thread(wait_for, lambda: has_ended(pid))


async def test_stopped_rank_is_killed_with_its_engine(two: EngineSettings) -> None:
    hasty = EngineClient(two, stall_seconds=3)
    try:
        await asyncio.to_thread(hasty.start)
        pid = (await hasty.ready()).pid
        [rank] = ranks_of(pid)
        os.kill(rank, signal.SIGSTOP)
        with pytest.raises(EngineDiedError):
            await updates(hasty, REQUESTS[0])
        await asyncio.to_thread(wait_for, lambda: has_ended(rank) and has_ended(pid))
    finally:
        await hasty.close()


async def test_ranks_end_with_unused_engine(two: EngineSettings) -> None:
    client = EngineClient(two, 60, patience_seconds=120)
    await asyncio.to_thread(client.start)
    pid = (await client.ready()).pid
    [rank] = ranks_of(pid)
    await client.close()
    await asyncio.to_thread(wait_for, lambda: has_ended(pid) and has_ended(rank))
    assert not rendezvous(two).exists()


def test_engine_with_wrong_number_of_ranks_does_not_start(tmp_path: Path, words: Path) -> None:
    client = EngineClient(settings(tmp_path, words, tensor_parallel_size=4))
    with pytest.raises(EngineError, match="tensor_parallel_size is 4, which does not divide"):
        client.start()


# -- rank 0's view of the others ---------------------------------------------------


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> tuple[RankProcesses, "Queue[str]"]:
    """Return rank 0's view of a rank 1 that is a program with its connection as `rank`, and what it fails with."""
    file, failures = folder / "rank", Queue[str]()
    opened = "import sys\nfrom multiprocessing.connection import Connection\nrank = Connection(int(sys.argv[5]))"
    file.write_text(f"#!{sys.executable}\n{opened}\n{program}\n")
    file.chmod(0o700)

    def fail(sentence: str) -> NoReturn:
        failures.put(sentence)
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # the process would end
        raise SystemExit

    monkeypatch.setattr(sys, "executable", str(file))
    return RankProcesses(settings(folder, folder, tensor_parallel_size=2), fail), failures


def test_ranks_agree_on_blocks_of_the_least_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "rank.send(7)\nassert rank.recv() == 7\nrank.send(3)\nassert rank.recv() == 2\nassert rank.recv() == 'end'"
    )
    processes, failures = scripted(tmp_path, monkeypatch, program)
    with processes:
        processes.start()
        assert processes.agree(9) == 7
        assert processes.agree(2) == 2
    assert failures.empty()


def test_rank_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes, failures = scripted(tmp_path, monkeypatch, "rank.send('cuda:1 has 2 GB free: free some of it')")
    with processes:
        processes.start()
        assert failures.get(timeout=60) == "cuda:1 has 2 GB free: free some of it"


def test_step_for_rank_that_has_ended_fails_with_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes, failures = scripted(tmp_path, monkeypatch, "sys.exit(4)")
    sentence = "Rank 1 of the gpt-oss engine's 2 ended with status 4, and the engine ended with it"
    with processes:
        processes.start()
        assert failures.get(timeout=60) == sentence
        with pytest.raises(SystemExit):
            processes.announce(b"step")
        assert failures.get(timeout=60) == sentence
