"""The reference is compared with two independent implementations, on the same files."""

from pathlib import Path

import pytest
import torch
from gpt_oss.torch.model import Transformer
from transformers import GptOssForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from llama_stack_gpt_oss.engine import reference
from llama_stack_gpt_oss.engine.config import ModelConfig, read_config
from llama_stack_gpt_oss.engine.weights import Weights, load

from .support.checkpoints import Size, random_tensors, resized, write_hugging_face

CLOSE = 1e-4


def loaded(folder: Path) -> tuple[Weights, ModelConfig]:
    config = read_config(folder)
    return load(folder, config, torch.device("cpu"), torch.float32, lambda _: None), config


def transformers_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = GptOssForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    ).eval()
    with torch.no_grad():
        found: torch.Tensor = model(tokens[None]).logits[0]
    return found


def ids(count: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 15, 17, 100])
def test_reference_matches_transformers_within_and_beyond_window(checkpoint: Path, size: Size, count: int) -> None:
    weights, config = loaded(checkpoint)
    tokens = ids(count, size.vocabulary)
    torch.testing.assert_close(
        reference.logits(weights, config, tokens), transformers_logits(checkpoint, tokens), atol=CLOSE, rtol=0
    )


def test_reference_matches_transformers_beyond_original_context(tmp_path: Path, size: Size) -> None:
    """The context that YaRN extends is set to 64 positions here, so that a short sequence exceeds it."""
    small = resized(size, original_context=64)
    folder = write_hugging_face(tmp_path / "short", random_tensors(small), small)
    weights, config = loaded(folder)
    tokens = ids(200, small.vocabulary)
    torch.testing.assert_close(
        reference.logits(weights, config, tokens), transformers_logits(folder, tokens), atol=CLOSE, rtol=0
    )


def test_fine_tune_that_transformers_saved_matches_its_source(checkpoint: Path, size: Size, tmp_path: Path) -> None:
    """The source is in MXFP4, so nothing is lost when its weights in bf16 are quantised again."""
    model = GptOssForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()
    tokens = ids(20, size.vocabulary)
    assert torch.equal(reference.logits(*loaded(tmp_path), tokens), reference.logits(*loaded(checkpoint), tokens))


@pytest.mark.parametrize("count", [1, 48, 150])
def test_reference_matches_published_torch_model(original_checkpoint: Path, size: Size, count: int) -> None:
    theirs = Transformer.from_checkpoint(str(original_checkpoint), device="cpu").float()
    weights, config = loaded(original_checkpoint)
    tokens = ids(count, size.vocabulary)
    with torch.no_grad():
        expected = theirs(tokens)
    torch.testing.assert_close(reference.logits(weights, config, tokens), expected, atol=CLOSE, rtol=0)


def test_both_checkpoint_layouts_give_same_weights(checkpoint: Path, original_checkpoint: Path, size: Size) -> None:
    tokens = ids(20, size.vocabulary)
    one = reference.logits(*loaded(checkpoint), tokens)
    assert torch.equal(one, reference.logits(*loaded(original_checkpoint), tokens))
