"""Loading: what is read, what is reported, and checkpoints that are refused in one sentence before serving."""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llama_stack_gpt_oss.engine import mxfp4, weights
from llama_stack_gpt_oss.engine.config import read_config, read_generation_defaults
from llama_stack_gpt_oss.engine.errors import CheckpointError, TooLittleMemoryError
from llama_stack_gpt_oss.engine.progress import Progress
from llama_stack_gpt_oss.engine.weights import Weights, find_layout, load
from llama_stack_gpt_oss.process.progress import ProgressBar

from .support.checkpoints import STOP_IDS, Size, random_tensors, write_hugging_face

FIRST = "model-00000-of-00001.safetensors"
LAST = "model-00001-of-00001.safetensors"
CPU = torch.device("cpu")


def read(folder: Path, report: Callable[[Progress], None] = lambda _: None) -> Weights:
    return load(folder, read_config(folder), CPU, torch.float32, report)


@pytest.fixture
def copy(tmp_path: Path, checkpoint: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def test_experts_stay_packed_and_qkv_is_joined(checkpoint: Path, size: Size) -> None:
    tensors, layer = random_tensors(size), read(checkpoint).layers[2]
    prefix = "model.layers.2."
    for experts, name in ((layer.up, "gate_up_proj"), (layer.down, "down_proj")):
        packed = mxfp4.pack(*(tensors[f"{prefix}mlp.experts.{name}_{part}"] for part in ("blocks", "scales")))
        assert torch.equal(experts.words, packed[0])
        assert torch.equal(experts.scales, packed[1])
    q, k, v = layer.qkv.split([256, 128, 128])
    for letter, part in zip("qkv", (q, k, v), strict=True):
        assert torch.equal(part, tensors[f"{prefix}self_attn.{letter}_proj.weight"].float())


def test_loading_reports_bytes_and_layers_to_end(checkpoint: Path, size: Size) -> None:
    seen: list[Progress] = []
    read(checkpoint, seen.append)
    done = [step.bytes_done for step in seen]
    assert done == sorted(done)
    assert (seen[-1].bytes_done, seen[-1].layers_done) == (seen[-1].bytes_total, size.layers)


def fine_tune(folder: Path, size: Size, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """Write a checkpoint without MXFP4, as transformers writes it: weights of experts with inputs before rows."""
    tensors = random_tensors(size)
    for name in [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]:
        blocks, scales = tensors.pop(f"{name}_blocks"), tensors.pop(f"{name}_scales")
        tensors[name] = change(mxfp4.decode(*mxfp4.pack(blocks, scales), torch.float32)).mT.to(torch.bfloat16)
    return write_hugging_face(folder, tensors, size)


def test_fine_tune_of_representable_weights_loads_without_error(checkpoint: Path, tmp_path: Path, size: Size) -> None:
    seen: list[Progress] = []
    folder = fine_tune(tmp_path / "tuned", size, lambda weights: weights)
    pairs = zip(read(folder, seen.append).layers, read(checkpoint).layers, strict=True)
    for experts, expected in [pair for one, other in pairs for pair in ((one.up, other.up), (one.down, other.down))]:
        found, wanted = (mxfp4.decode(each.words, each.scales, torch.float32) for each in (experts, expected))
        assert torch.equal(found, wanted)
        assert torch.equal(experts.bias, expected.bias)
    assert seen[-1].quantisation_error == 0
    assert seen[-1].bytes_done == seen[-1].bytes_total


def test_fine_tune_is_quantised_with_stated_error(tmp_path: Path, size: Size) -> None:
    """Normally distributed weights lose about a tenth of their size."""
    out, source = io.StringIO(), torch.Generator().manual_seed(3)
    bar = ProgressBar(out)
    folder = fine_tune(tmp_path / "tuned", size, lambda weights: torch.randn(weights.shape, generator=source))
    read(folder, bar.show)
    error = re.search(r"4 of 4 layers, experts quantised to MXFP4 with an error of ([\d.]+)%", out.getvalue())
    assert error is not None
    assert 8 < float(error[1]) < 12


def test_fine_tune_with_values_that_are_no_numbers_is_refused(tmp_path: Path, size: Size) -> None:
    folder = fine_tune(tmp_path / "tuned", size, lambda weights: weights / 0)
    with pytest.raises(CheckpointError, match="gate_up_proj has values that are infinite, no numbers, or too large"):
        read(folder)


def test_folder_with_weights_is_found(checkpoint: Path, original_checkpoint: Path) -> None:
    assert find_layout(checkpoint) == checkpoint
    assert find_layout(original_checkpoint.parent) == original_checkpoint
    with pytest.raises(CheckpointError, match="is not a folder"):
        find_layout(checkpoint / "nothing")


def test_generation_defaults_are_read(checkpoint: Path, original_checkpoint: Path) -> None:
    assert read_generation_defaults(checkpoint).stop_ids == frozenset(STOP_IDS)
    assert read_generation_defaults(original_checkpoint).stop_ids == {200002, 200012}


def cut_off(folder: Path) -> None:
    whole = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(whole[: len(whole) // 2])


def unreadable(folder: Path) -> None:
    (folder / FIRST).write_bytes(b"<html>quota exceeded</html>")


def garbled_header(folder: Path) -> None:
    whole = bytearray((folder / FIRST).read_bytes())
    whole[8:20] = b"\xff" * 12
    (folder / FIRST).write_bytes(whole)


def shard_missing(folder: Path) -> None:
    (folder / LAST).unlink()


def tensor_missing_from_its_shard(folder: Path) -> None:
    tensors = load_file(folder / LAST)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / LAST)


def tensor_missing_from_the_index(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))


def index_damaged(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [')


def index_reaches_outside(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": "../other.safetensors"}}))


def other_shape(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_local_experts": 16}))


def not_quantised(folder: Path) -> None:
    tensors = load_file(folder / LAST)
    name = "model.layers.3.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name].to(torch.bfloat16)
    save_file(tensors, folder / LAST)


def scale_too_large(folder: Path) -> None:
    tensors = load_file(folder / LAST)
    tensors["model.layers.3.mlp.experts.down_proj_scales"][5, 7, 1] = 160
    save_file(tensors, folder / LAST)


def another_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))


def config_missing(folder: Path) -> None:
    (folder / "config.json").unlink()


def config_damaged(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def odd_width(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 100}))


def more_chosen_than_there_are(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_experts_per_tok": 9}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_off, r"is incomplete: it has [\d,]+ bytes, its header says [\d,]+"),
        (unreadable, "is damaged: it has 27 bytes and no readable header"),
        (garbled_header, "its header cannot be read; download it again"),
        (shard_missing, f"lacks 1 of 2 weight files, first {LAST}"),
        (tensor_missing_from_its_shard, "lacks lm_head.weight, which the index says it holds"),
        (tensor_missing_from_the_index, "lacks the tensor model.norm.weight"),
        (index_damaged, "index.json is damaged: download it again"),
        (index_reaches_outside, "names a file outside the checkpoint"),
        (other_shape, r"has the shape \[8, 96\], where config.json asks for \[16, 96\]"),
        (not_quantised, "experts are in MXFP4, or none of them is"),
        (scale_too_large, r"layers\.3\.mlp\.experts\.down_proj_scales has scales above 159, which no kernel reads"),
        (another_model, r"does not describe a gpt-oss model, as .* shows: use gpt-oss-20b"),
        (config_missing, "is missing: this is not a gpt-oss checkpoint"),
        (config_damaged, "is not valid JSON"),
        (odd_width, "hidden_size is 100"),
        (more_chosen_than_there_are, "has 8 experts and chooses 9 for a token"),
    ],
)
def test_invalid_checkpoint_is_refused_in_one_sentence(
    copy: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    damage(copy)
    with pytest.raises(CheckpointError, match=sentence) as refusal:
        read(copy)
    assert "\n" not in str(refusal.value)


def test_weights_over_free_memory_are_refused_with_sizes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "free_bytes", lambda _: 300_000)
    with pytest.raises(TooLittleMemoryError, match=r"The weights need [\d.]+ GB, and cpu has 0.0 GB free"):
        read(checkpoint)
