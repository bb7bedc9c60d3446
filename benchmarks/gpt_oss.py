"""The decode and prefill speed of the gpt-oss engine, at the real shapes of gpt-oss-20b with random weights.

    python benchmarks/gpt_oss.py            on a machine with a GPU
    python benchmarks/gpt_oss.py --tiny     small shapes on the CPU: tests the script, measures nothing

It needs torch, triton and this repository's files, but no checkpoint. Every rate is compared with the floor: the time
for reading the step's weights and KV cache at the copy bandwidth measured in the same run. If transformers is
installed, it decodes the same weights, dequantised to bf16. Without kernels from the hub, this is no fair comparison.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "providers" / "gpt_oss"))

from llama_stack_gpt_oss.engine import mxfp4
from llama_stack_gpt_oss.engine.cache import PAGE, BlockTable, KVCacheBlocks, places_filled
from llama_stack_gpt_oss.engine.config import ModelConfig, Yarn
from llama_stack_gpt_oss.engine.kernels import choose
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.runner import ModelRunner, Step
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Params, Sequence
from llama_stack_gpt_oss.engine.weights import Experts, Layer, Weights

YARN = Yarn(theta=150000.0, factor=32.0, original_context=4096, beta_fast=32.0, beta_slow=1.0)


@dataclass(frozen=True)
class Plan:
    """The parameters of a run. `steps` decode steps are timed after `warm` untimed ones."""

    config: ModelConfig
    batches: tuple[int, ...]
    context: int
    prompts: tuple[int, ...]
    chunk: int
    steps: int
    warm: int
    copied: int


def real() -> Plan:
    config = ModelConfig(
        vocabulary=201088,
        hidden=2880,
        intermediate=2880,
        head_size=64,
        query_heads=64,
        kv_heads=8,
        experts=32,
        experts_per_token=4,
        windows=(128, None) * 12,
        context=131072,
        swiglu_limit=7.0,
        norm_epsilon=1e-5,
        yarn=YARN,
    )
    return Plan(config, (1, 8, 32, 64), 1024, (2048, 16384), chunk=4096, steps=100, warm=10, copied=1 << 32)


def tiny() -> Plan:
    config = ModelConfig(
        vocabulary=512,
        hidden=64,
        intermediate=64,
        head_size=64,
        query_heads=4,
        kv_heads=2,
        experts=8,
        experts_per_token=4,
        windows=(16, None),
        context=1024,
        swiglu_limit=7.0,
        norm_epsilon=1e-5,
        yarn=YARN,
    )
    return Plan(config, (1, 2), 100, (128,), chunk=64, steps=2, warm=1, copied=1 << 20)


# Weights


def random_weights(config: ModelConfig, device: torch.device) -> Weights:
    """Create small random weights, so that nothing overflows; experts in MXFP4, as on disk."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def dense(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device) * 0.02

    def experts(rows: int, inputs: int) -> Experts:
        shape = (config.experts, rows, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, device=device)
        scales = torch.randint(118, 122, shape, dtype=torch.uint8, device=device)
        return Experts(blocks, scales, dense(config.experts, rows))

    def layer() -> Layer:
        width = config.query_width + 2 * config.kv_width
        return Layer(
            attention_norm=dense(config.hidden) + 1,
            qkv=dense(width, config.hidden),
            qkv_bias=dense(width),
            sinks=dense(config.query_heads),
            out=dense(config.hidden, config.query_width),
            out_bias=dense(config.hidden),
            mlp_norm=dense(config.hidden) + 1,
            router=dense(config.experts, config.hidden),
            router_bias=dense(config.experts),
            up=experts(2 * config.intermediate, config.hidden),
            down=experts(config.hidden, config.intermediate),
        )

    words = (config.vocabulary, config.hidden)
    return Weights(dense(*words), tuple(layer() for _ in range(config.layers)), dense(config.hidden) + 1, dense(*words))


# The floor


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return the bytes per second, read and written, of the fastest of several copies."""
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
    return size / min(timed(lambda: target.copy_(source), device) for _ in range(10))


def step_bytes(config: ModelConfig, weights: Weights, batch: int, context: int) -> float:
    """Return the bytes that a decode step reads: dense weights, experts expected for `batch` rows, KV cache."""
    share = 1 - (1 - config.experts_per_token / config.experts) ** batch
    total = float(weights.unembedding.nbytes + weights.norm.nbytes)
    for layer, window in zip(weights.layers, config.windows, strict=True):
        dense = (layer.attention_norm, layer.qkv, layer.qkv_bias, layer.out, layer.out_bias, layer.mlp_norm)
        total += sum(tensor.nbytes for tensor in (*dense, layer.router, layer.router_bias, layer.sinks))
        packed = (
            layer.up.blocks,
            layer.up.scales,
            layer.up.bias,
            layer.down.blocks,
            layer.down.scales,
            layer.down.bias,
        )
        total += share * sum(tensor.nbytes for tensor in packed)
        seen = context if window is None else min(window, context)
        total += batch * seen * 2 * config.kv_width * layer.qkv.element_size()
    return total


# Measuring


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, including the device's work."""
    settle(device)
    start = time.perf_counter()
    run()
    settle(device)
    return time.perf_counter() - start


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sequences(config: ModelConfig, count: int, tokens: int, room: int) -> list[Sequence]:
    """Create sequences of random tokens, each with its own blocks, and room to grow."""
    places, kv_groups = places_filled(tokens + room), len(config.kv_groups)
    made = []
    for number in range(count):
        prompt = torch.randint(config.vocabulary, (tokens,)).tolist()
        sequence = Sequence(str(number), prompt, tokens, Params(max_tokens=room, temperature=0.0), number)
        first = [(number * kv_groups + kv_group) * places for kv_group in range(kv_groups)]
        sequence.blocks = KVCacheBlocks(tables=tuple(BlockTable(list(range(page, page + places))) for page in first))
        made.append(sequence)
    return made


def decode_rate(plan: Plan, runner: ModelRunner, batch: int) -> float:
    """Return the tokens per second of the whole batch, including sampling and transfers from and to the host."""
    running = sequences(plan.config, batch, plan.context, plan.warm + plan.steps + 1)

    def start() -> Step:
        step = runner.start([ScheduledTokens(each, each.length - 1, 1) for each in running])
        for each in running:
            each.unread += 1
        return step

    def read(step: Step) -> None:
        for each, sampled in zip(running, step.sampled(), strict=True):
            each.append(sampled.token)

    def steps(count: int) -> None:
        """Run steps like the engine: start each before the previous one is read."""
        step = start()
        for _ in range(count - 1):
            step, before = start(), step
            read(before)
        read(step)

    device = runner.device
    timed(lambda: steps(plan.warm), device)
    return batch * plan.steps / timed(lambda: steps(plan.steps), device)


def prefill_rate(plan: Plan, runner: ModelRunner, tokens: int) -> float:
    """Return the tokens per second of one prompt in chunks; the second of two runs."""
    (sequence,) = sequences(plan.config, 1, tokens, 1)

    def run() -> None:
        for start in range(0, tokens, plan.chunk):
            runner.run([ScheduledTokens(sequence, start, min(plan.chunk, tokens - start))])

    timed(run, runner.device)
    return tokens / timed(run, runner.device)


# transformers


def rival_rate(plan: Plan, weights: Weights, device: torch.device) -> float | None:
    """Return the tokens per second of transformers at batch 1; None if it is not installed."""
    try:
        from transformers import GptOssConfig, GptOssForCausalLM
    except ImportError:
        return None
    config = plan.config
    made = GptOssConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_local_experts=config.experts,
        num_experts_per_tok=config.experts_per_token,
        num_attention_heads=config.query_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_size,
        sliding_window=config.windows[0],
        pad_token_id=0,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model: Any = GptOssForCausalLM(made)
    model = model.to(dtype=weights.embedding.dtype).to_empty(device=device).eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(made).to(device)
    with torch.no_grad():
        for name, tensor in rival_state(config, weights):
            model.get_parameter(name).copy_(tensor)
    prompt = torch.randint(config.vocabulary, (1, plan.context), device=device)

    def generate(tokens: int) -> float:
        return timed(
            lambda: model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False), device
        )

    generate(plan.warm)
    # The difference excludes the time for the prompt.
    return plan.steps / max(generate(plan.steps + 1) - generate(1), 1e-9)


def rival_state(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same weights under transformers' names, one after the other."""
    yield "model.embed_tokens.weight", weights.embedding
    yield "model.norm.weight", weights.norm
    yield "lm_head.weight", weights.unembedding
    for number, layer in enumerate(weights.layers):
        prefix = f"model.layers.{number}."
        widths = [config.query_width, config.kv_width, config.kv_width]
        for kv_group, whole in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            for letter, part in zip("qkv", whole.split(widths), strict=True):
                yield f"{prefix}self_attn.{letter}_proj.{kv_group}", part
        yield f"{prefix}self_attn.o_proj.weight", layer.out
        yield f"{prefix}self_attn.o_proj.bias", layer.out_bias
        yield f"{prefix}self_attn.sinks", layer.sinks
        yield f"{prefix}input_layernorm.weight", layer.attention_norm
        yield f"{prefix}post_attention_layernorm.weight", layer.mlp_norm
        yield f"{prefix}mlp.router.weight", layer.router
        yield f"{prefix}mlp.router.bias", layer.router_bias
        for name, experts in (("gate_up_proj", layer.up), ("down_proj", layer.down)):
            whole = mxfp4.decode(experts.blocks, experts.scales, weights.embedding.dtype)
            yield f"{prefix}mlp.experts.{name}", whole.transpose(1, 2)
            yield f"{prefix}mlp.experts.{name}_bias", experts.bias


# The report


def report(plan: Plan, device: torch.device) -> Iterator[str]:
    """Yield the lines of the table."""
    weights = random_weights(plan.config, device)
    room = plan.context + plan.warm + plan.steps + 1
    places = max(max(plan.batches) * places_filled(room), places_filled(max(plan.prompts) + 1))
    context = max(room, *plan.prompts) + PAGE
    pages = places * len(plan.config.kv_groups)
    model = Model(plan.config, weights, choose(plan.config, device, weights.embedding.dtype), pages, context)
    runner = ModelRunner(model, device, context)
    bandwidth = copy_bandwidth(device, plan.copied)
    yield f"| {describe(device)}, copies at {bandwidth / 1e12:.2f} TB/s | tokens/s | share of the floor |"
    yield "|---|---|---|"
    for batch in plan.batches:
        rate = decode_rate(plan, runner, batch)
        floor = batch * bandwidth / step_bytes(plan.config, weights, batch, plan.context)
        yield f"| decode, batch {batch}, {plan.context} tokens of context | {rate:,.0f} | {rate / floor:.0%} |"
    for tokens in plan.prompts:
        yield f"| prefill, {tokens:,} tokens | {prefill_rate(plan, runner, tokens):,.0f} | |"
    del model, runner
    rival = rival_rate(plan, weights, device)
    if rival is None:
        yield "| transformers | cannot be imported here | |"
    else:
        yield f"| transformers, batch 1, dequantised (no fair rival) | {rival:,.0f} | |"


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (tiny shapes, not a measurement)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the gpt-oss engine at the shapes of gpt-oss-20b.")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to try the script itself")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        print("torch finds no GPU: there is nothing to measure here. --tiny tries the script on the CPU.")
        return 1
    torch.manual_seed(0)
    device = torch.device("cpu" if arguments.tiny else "cuda")
    for line in report(tiny() if arguments.tiny else real(), device):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
