"""Selection of the device, and the progress that is shown until the engine is ready."""

import io
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from llama_stack_gpt_oss.config import GptOssConfig
from llama_stack_gpt_oss.engine.config import read_config
from llama_stack_gpt_oss.engine.engine import Request
from llama_stack_gpt_oss.engine.errors import EngineError
from llama_stack_gpt_oss.engine.model import block_bytes
from llama_stack_gpt_oss.engine.progress import Progress
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.sharding import Shard
from llama_stack_gpt_oss.process.assembly import assemble, select_device
from llama_stack_gpt_oss.process.progress import ProgressBar

from .support.engines import drain


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that a process on a machine with two GPUs has selected."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_named_gpu_is_selected_for_kernels(selected: list[torch.device], name: str, index: int) -> None:
    assert select_device(name) == torch.device("cuda", index)
    assert selected == [torch.device("cuda", index)]


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:1"])
def test_device_of_configuration_is_one_that_can_be_selected(name: str) -> None:
    assert GptOssConfig(checkpoint="x", device=name).device == name


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:1x", "cpu:0", ""])
def test_unknown_device_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"device is auto, cpu, cuda or a GPU by its number such as cuda:1, and not '{name}'"
    ):
        GptOssConfig(checkpoint="x", device=name)


def test_gpu_that_does_not_exist_is_error_with_last_one(selected: list[torch.device]) -> None:
    with pytest.raises(EngineError, match="set to cuda:2, and the last GPU that torch finds is cuda:1"):
        select_device("cuda:2")
    assert not selected


def test_each_rank_selects_the_gpu_after_that_of_the_rank_before(selected: list[torch.device]) -> None:
    for rank in (0, 1):
        assert select_device("auto", Shard(rank, 2)) == torch.device("cuda", rank)
    assert selected == [torch.device("cuda", 0), torch.device("cuda", 1)]


def test_more_ranks_than_gpus_is_error_with_their_number(selected: list[torch.device]) -> None:
    with pytest.raises(EngineError, match="tensor_parallel_size is 2, and torch finds 1 GPUs from cuda:1 on"):
        select_device("cuda:1", Shard(0, 2))
    assert not selected


@pytest.mark.parametrize(("tokens", "ok"), [(63, False), (64, True), (16384, True), (16385, False)])
def test_tokens_of_a_step_are_bounded(tokens: int, ok: bool) -> None:
    """The largest step is computed at the start, and its memory is not free for the KV cache."""
    with nullcontext() if ok else pytest.raises(ValueError, match="prefill_tokens"):
        assert GptOssConfig(checkpoint="x", prefill_tokens=tokens).prefill_tokens == tokens


def test_cpu_selects_no_gpu(selected: list[torch.device]) -> None:
    assert select_device("cpu") == torch.device("cpu")
    assert not selected


def test_fp8_kv_cache_on_gpu_without_fp8_is_error(
    selected: list[torch.device], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    config = GptOssConfig(checkpoint=str(checkpoint), device="cuda:1", kv_dtype="fp8")
    with pytest.raises(EngineError, match="kv_dtype is set to fp8, and cuda:1 has no FP8"):
        assemble(config.engine(checkpoint), lambda _: None)


def test_fp8_kv_cache_has_blocks_of_quarter_of_float32(checkpoint: Path) -> None:
    config = GptOssConfig(checkpoint=str(checkpoint), device="cpu", memory_share=0.01, kv_dtype="fp8")
    engine = assemble(config.engine(checkpoint), lambda _: None)
    engine.add(Request(("one",), [1, 2, 3], SamplingParams(max_tokens=5)))
    assert len(drain(engine)) == 5
    model = read_config(checkpoint)
    assert 4 * block_bytes(model, torch.float8_e4m3fn) == block_bytes(model, torch.float32)


def test_setting_of_drafts_makes_engine_draft(checkpoint: Path) -> None:
    """The prompt repeats itself, and the answer too: each token makes itself more likely."""
    config = GptOssConfig(checkpoint=str(checkpoint), device="cpu", memory_share=0.01, draft_tokens=3)
    engine = assemble(config.engine(checkpoint), lambda _: None)
    params = SamplingParams(max_tokens=100, temperature=0.0, frequency_penalty=-2.0)
    engine.add(Request(("one",), [1, 2, 3, 4] * 4, params))
    assert len(drain(engine)) == 100
    metrics = engine.metrics()
    assert 0 < metrics.accepted_tokens <= metrics.drafted_tokens
    assert metrics.steps == 100 - metrics.accepted_tokens


def test_warm_up_has_progress_bar_after_loading() -> None:
    out = io.StringIO()
    bar = ProgressBar(out)
    loaded = Progress(2_000_000_000, 2_000_000_000, 24, 24)
    bar.show(loaded)
    for done in (1, 2, 4):
        bar.show(Progress(2_000_000_000, 2_000_000_000, 24, 24, done, 4))
    loading, *warming = out.getvalue().splitlines()
    assert loading == f"gpt-oss: loading [{'#' * 30}] 100%  2.0 of 2.0 GB, 24 of 24 layers"
    assert [line.partition("]")[2].split() for line in warming] == [
        ["25%", "1", "of", "4", "steps"],
        ["50%", "2", "of", "4", "steps"],
        ["100%", "4", "of", "4", "steps"],
    ]
    assert all(line.startswith("gpt-oss: warming up [") for line in warming)
