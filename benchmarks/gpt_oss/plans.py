"""Shapes and amounts of a run, and random weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from llama_stack_gpt_oss.engine.config import ModelConfig, Yarn
from llama_stack_gpt_oss.engine.draft_head import DraftHeadWeights
from llama_stack_gpt_oss.engine.draft_head_config import DraftHeadConfig, DraftHeadRope
from llama_stack_gpt_oss.engine.mxfp4 import padded
from llama_stack_gpt_oss.engine.weights import Experts, Layer, Weights

YARN = Yarn(theta=150000.0, factor=32.0, original_context=4096, beta_fast=32.0, beta_slow=1.0)
GPT_OSS_20B = ModelConfig(
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
GPT_OSS_120B = replace(GPT_OSS_20B, experts=128, windows=(128, None) * 18)
TINY = replace(
    GPT_OSS_20B,
    vocabulary=128,
    hidden=64,
    intermediate=64,
    query_heads=4,
    kv_heads=2,
    experts=8,
    windows=(16, None),
    context=1024,
)


@dataclass(frozen=True)
class Plan:
    """The amounts of a run. `steps` decode steps are timed after `warm` untimed ones.

    rows, large_rows: of the kernels that are compared, the latter with the experts of the 120b. timed_rows: of those
    that are timed. decoded: rows up to which a step has decodes, and not a prompt. attended: sequences, and of each the
    computed tokens and the tokens to compute, for the time of attention. batches: pairs of answers and tokens of
    context. independent: those without programmatic dependent launch. eight: those with an FP8 KV cache. large: batches
    of the 120b. profiled: those whose kernels are timed. sampled: answers with each way of sampling. drafts: tokens
    drafted for an answer of `answer` tokens. host: answers, tokens of context and steps without kernels. repeats: timed
    launches of a kernel. copied: bytes of a copy. multiplied: rows and columns of a product.
    """

    config: ModelConfig
    rows: Sequence[int]
    large_rows: Sequence[int]
    timed_rows: Sequence[int]
    decoded: int
    attended: Sequence[tuple[int, int, int]]
    batches: Sequence[tuple[int, int]]
    independent: Sequence[tuple[int, int]]
    eight: Sequence[tuple[int, int]]
    large: Sequence[tuple[int, int]]
    profiled: Sequence[tuple[int, int]]
    sampled: Sequence[int]
    drafts: Sequence[int]
    answer: int
    prompts: Sequence[int]
    host: tuple[int, int, int]
    chunk: int
    steps: int
    warm: int
    repeats: int
    copied: int
    multiplied: int
    tiny: bool = False


REAL = Plan(
    config=GPT_OSS_20B,
    rows=(1, 8, 9, 16, 17, 33, 64, 65, 200, 2048),
    large_rows=(8, 64),
    timed_rows=(1, 8, 64, 2048),
    decoded=128,
    attended=((1, 1023, 1), (1, 8191, 1), (64, 1023, 1), (64, 8191, 1), (1, 0, 2048), (1, 6144, 2048)),
    batches=(*((batch, 1024) for batch in (1, 2, 8, 32, 64, 128)), (1, 8192), (64, 8192), (1, 32768), (1, 131000)),
    independent=((1, 1024), (64, 1024)),
    eight=((64, 8192), (1, 131000)),
    large=((1, 1024), (8, 1024), (64, 1024)),
    profiled=((1, 1024), (64, 1024)),
    sampled=(1, 64),
    drafts=(0, 1, 3, 7),
    answer=100,
    prompts=(2048, 16384),
    host=(64, 8192, 300),
    chunk=4096,
    steps=100,
    warm=10,
    repeats=50,
    copied=1 << 32,
    multiplied=8192,
)
SMALL = Plan(
    config=TINY,
    rows=(1,),
    large_rows=(2,),
    timed_rows=(65, 9),
    decoded=9,
    attended=((1, 99, 1), (1, 64, 32)),
    batches=((1, 100), (2, 100)),
    independent=((1, 100),),
    eight=((1, 100),),
    large=((1, 100),),
    profiled=((1, 100),),
    sampled=(2,),
    drafts=(0, 3),
    answer=20,
    prompts=(128,),
    host=(4, 200, 5),
    chunk=64,
    steps=2,
    warm=1,
    repeats=1,
    copied=1 << 20,
    multiplied=64,
    tiny=True,
)


def random_weights(config: ModelConfig, device: torch.device) -> Weights:
    """Create small random weights, so that nothing overflows; experts in MXFP4."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def dense(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device) * 0.02

    def experts(rows: int, inputs: int) -> Experts:
        shape = (config.experts, rows, inputs // 32)
        words = torch.randint(256, (*shape, 16), dtype=torch.uint8, device=device).view(torch.int32)
        scales = torch.randint(118, 122, shape, dtype=torch.uint8, device=device)
        return Experts(words, padded(scales), dense(config.experts, rows))

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


def head_config(config: ModelConfig) -> DraftHeadConfig:
    """Return the dimensions of a published EAGLE-3 head, in the proportions of the model."""
    return DraftHeadConfig(
        hidden=config.hidden,
        intermediate=6 * config.hidden,
        head_size=config.head_size,
        query_heads=config.query_heads,
        kv_heads=config.kv_heads,
        vocabulary=min(32000, config.vocabulary),
        features=(config.layers // 4, config.layers // 2, config.layers - 1),
        rope=DraftHeadRope(config.yarn.theta),
        norm_epsilon=config.norm_epsilon,
        norm_before_residual=False,
    )


def random_head(config: DraftHeadConfig, model: Weights) -> DraftHeadWeights:
    """Create small random weights of a head next to those of the model."""
    like, hidden = model.embedding, config.hidden

    def dense(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=like.dtype, device=like.device) * 0.02

    return DraftHeadWeights(
        embedding=like,
        final_norm=model.norm,
        feature_norms=(),
        combine=dense(hidden, len(config.features) * hidden),
        embedding_norm=dense(hidden) + 1,
        hidden_norm=dense(hidden) + 1,
        qkv=dense((config.query_heads + 2 * config.kv_heads) * config.head_size, 2 * hidden),
        out=dense(hidden, config.query_heads * config.head_size),
        mlp_norm=dense(hidden) + 1,
        gate=dense(config.intermediate, hidden),
        up=dense(config.intermediate, hidden),
        down=dense(hidden, config.intermediate),
        norm=dense(hidden) + 1,
        unembedding=dense(config.vocabulary, hidden),
        ids=torch.arange(config.vocabulary, device=like.device),
    )
