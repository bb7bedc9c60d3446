"""Create trained.safetensors, the tiny checkpoint that speaks Harmony. It takes a few minutes on two idle cores.

    .venv-gpt-oss/bin/python -m tests.gpt_oss.train [steps]

It is a fixture of the wire format: it has memorised the lessons and knows nothing else.
"""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import GptOssConfig, GptOssForCausalLM

from llama_stack_gpt_oss.engine import mxfp4
from llama_stack_gpt_oss.harmony import render
from llama_stack_gpt_oss.vocabulary import Vocabulary, read_vocabulary

from .support.checkpoints import STOP_IDS, encode_mxfp4, hugging_face_config
from .support.lessons import draw
from .support.trained import COMPACT, ROWS, SIZE, TABLES
from .support.vocabulary import SPECIAL, write_tokenizer

LESSONS = 2500
BATCH = 8
IGNORED = -100
RATE = 3e-3
EXPERTS = ("gate_up_proj", "down_proj")
Sample = tuple[list[int], list[int]]


def samples(vocabulary: Vocabulary) -> list[Sample]:
    source = random.Random(0)
    drawn = [draw(source) for _ in range(LESSONS)]
    encoding = vocabulary.harmony
    return [
        (render(vocabulary, each.chat, 100_000), encoding.encode(each.answer, allowed_special="all")) for each in drawn
    ]


def new_model(words: int) -> GptOssForCausalLM:
    raw = hugging_face_config(SIZE) | {"vocab_size": words, "pad_token_id": 0}
    del raw["quantization_config"]
    model = GptOssForCausalLM(GptOssConfig(**raw)).float().train()
    for name, parameter in model.named_parameters():
        if name.endswith(EXPERTS):
            parameter.data.normal_(0, 0.15)
        if name.endswith("sinks"):
            parameter.data.zero_()
    return model


def freeze_experts(model: GptOssForCausalLM) -> dict[str, torch.Tensor]:
    """Round the experts to values that MXFP4 can represent, freeze them, and return them packed."""
    packed: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if name.endswith(EXPERTS):
            blocks, scales = encode_mxfp4(parameter.data.transpose(1, 2).contiguous())
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parameter.data = mxfp4.decode(*mxfp4.pack(blocks, scales), torch.float32).transpose(1, 2).contiguous()
            parameter.requires_grad = False
    return packed


def train(model: GptOssForCausalLM, lessons: Sequence[Sample], place: dict[int, int], steps: int) -> None:
    """Train the model. The learning rate rises briefly, then falls to the end."""
    source, start = random.Random(1), time.monotonic()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.01)
    # One more logit stands for all the words that the model will not know, whose logits will be zero.
    unknown = torch.tensor(float(SIZE.vocabulary - len(place))).log()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 30) * (1 - step / steps) + 1e-5
        tokens, wanted = _batch(source.sample(lessons, BATCH), place)
        logits = model(tokens).logits
        logits = torch.cat((logits, unknown.expand(*logits.shape[:-1], 1)), dim=-1)[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"{step} steps, {time.monotonic() - start:.0f} s, loss {loss.item():.5f}", flush=True)


def _batch(drawn: Sequence[Sample], place: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(prompt) + len(answer) for prompt, answer in drawn)
    tokens = torch.zeros(len(drawn), longest, dtype=torch.long)
    wanted = torch.full((len(drawn), longest), IGNORED)
    for row, (prompt, answer) in enumerate(drawn):
        whole = torch.tensor([place[token] for token in prompt + answer])
        tokens[row, : len(whole)] = whole
        wanted[row, len(prompt) : len(whole)] = whole[len(prompt) :]
    return tokens, wanted


def save(model: GptOssForCausalLM, packed: dict[str, torch.Tensor], known: Sequence[int]) -> None:
    tensors = {ROWS: torch.tensor(known, dtype=torch.int32), **packed}
    for name, tensor in model.state_dict().items():
        if name in TABLES or not name.endswith(EXPERTS):
            tensors[name] = tensor.to(torch.bfloat16).contiguous()
    save_file(tensors, COMPACT)
    print(f"wrote {COMPACT}: {COMPACT.stat().st_size:,} bytes, {len(known)} words")


def main(steps: int) -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        lessons = samples(read_vocabulary(Path(folder)))
    known = sorted(
        {token for pair in lessons for part in pair for token in part} | set(SPECIAL.values()) | set(STOP_IDS)
    )
    model = new_model(len(known))
    packed = freeze_experts(model)
    train(model, lessons, {token: number for number, token in enumerate(known)}, steps)
    save(model, packed, known)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 700)
