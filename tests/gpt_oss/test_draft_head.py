"""An EAGLE-3 head drafts what its definition says, from blocks, and its drafts never change a token."""

import json
import math
import random
from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from benchmarks.gpt_oss.plans import GPT_OSS_20B, GPT_OSS_120B
from llama_stack_gpt_oss.config import GptOssConfig
from llama_stack_gpt_oss.engine import reference
from llama_stack_gpt_oss.engine.cache import BlockTable, KVCacheBlocks, blocks_filled
from llama_stack_gpt_oss.engine.config import read_config
from llama_stack_gpt_oss.engine.draft_head import DraftHead, load_draft_head
from llama_stack_gpt_oss.engine.draft_head_config import DraftHeadConfig, DraftHeadRope, read_draft_head_config
from llama_stack_gpt_oss.engine.engine import Engine, Request
from llama_stack_gpt_oss.engine.errors import CheckpointError
from llama_stack_gpt_oss.engine.graphs import Capture
from llama_stack_gpt_oss.engine.head_drafter import HeadDrafter
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.runner import ModelRunner
from llama_stack_gpt_oss.engine.sampler import draw, row_seed, seed_base, signed
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits, ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sequence
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.weights import Weights, load
from llama_stack_gpt_oss.process.assembly import assemble

from .support.engines import CPU, batch_of, drain, engine_over, tokens_of
from .support.records import replayed
from .test_drafts import WindowMask, answers, assert_equal, requests

pytestmark = pytest.mark.usefixtures("experts_decoded_once")

DRAFTS = 3
BLOCKS = 64
LIMITS = Limits(sequences=8, step_tokens=48, waiting=100, verified=24)
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
WARM = replace(GREEDY, temperature=1.0)
Tensors = dict[str, torch.Tensor]
RAW = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "draft_vocab_size": 200,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
}


def head_tensors(seed: int = 0) -> Tensors:
    """Return weights by the names of published heads. The head's tokens are every other one of the model's."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int, center: float = 0.0) -> torch.Tensor:
        return torch.randn(*shape, generator=source) * 0.1 + center

    return {
        "fc.weight": normal(96, 3 * 96),
        "midlayer.input_layernorm.weight": normal(96, center=1),
        "midlayer.hidden_norm.weight": normal(96, center=1),
        "midlayer.self_attn.q_proj.weight": normal(64, 192),
        "midlayer.self_attn.k_proj.weight": normal(32, 192),
        "midlayer.self_attn.v_proj.weight": normal(32, 192),
        "midlayer.self_attn.o_proj.weight": normal(96, 64),
        "midlayer.post_attention_layernorm.weight": normal(96, center=1),
        "midlayer.mlp.gate_proj.weight": normal(128, 96),
        "midlayer.mlp.up_proj.weight": normal(128, 96),
        "midlayer.mlp.down_proj.weight": normal(96, 128),
        "norm.weight": normal(96, center=1),
        "lm_head.weight": normal(200, 96),
        "d2t": torch.arange(200),
        "t2d": torch.tensor([token % 2 == 0 and token < 400 for token in range(512)]),
    }


def write_head(folder: Path, raw: dict[str, Any] = RAW, tensors: Tensors | None = None) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors or head_tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("head") / "eagle")


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    config = read_config(checkpoint)
    weights = load(checkpoint, config, CPU, torch.float32, lambda _: None)
    return Model(config, weights, TorchOps(config), BLOCKS, BLOCKS * 64, features=(1, 2, 3))


class RecordingDrafter:
    """Passes a drafter's proposals on, and keeps them with what they follow; `changed` may replace them."""

    waits = True

    def __init__(self, drafter: HeadDrafter, changed: Callable[[list[int], Sequence], list[int]]) -> None:
        self.proposed: list[tuple[list[int], list[int]]] = []
        self._drafter = drafter
        self._changed = changed

    def propose(self, sequences: Series[Sequence]) -> list[list[int]]:
        found = self._drafter.propose(sequences)
        self.proposed += [(list(each.tokens), drafts) for each, drafts in zip(sequences, found, strict=True) if drafts]
        return [self._changed(drafts, each) for each, drafts in zip(sequences, found, strict=True)]

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self._drafter._rows[sequence] += accepted  # the length of the next drafts stays the same

    def forget(self, sequence: Sequence) -> None:
        self._drafter.forget(sequence)


def observed(
    model: Model,
    folder: Path,
    changed: Callable[[list[int], Sequence], list[int]] = lambda drafts, _: drafts,
    capture: Capture | None = None,
    limits: Limits = LIMITS,
    blocks: int = BLOCKS,
) -> tuple[Engine, RecordingDrafter]:
    config = read_draft_head_config(folder, model.config)
    head = DraftHead(config, load_draft_head(folder, config, model.weights), model.config, BLOCKS, BLOCKS * 64)
    runner = ModelRunner(model, CPU, 4096, limits.sequences, capture, DRAFTS, draft_head=head)
    assert runner.drafter is not None
    drafter = RecordingDrafter(runner.drafter, changed)
    groups = model.config.kv_groups
    return engine_over(runner, blocks, limits, open_mask=rising, kv_groups=groups, drafter=drafter)[0], drafter


def plain(model: Model) -> Engine:
    groups = model.config.kv_groups
    return engine_over(ModelRunner(model, CPU, 4096, 8), BLOCKS, LIMITS, open_mask=rising, kv_groups=groups)[0]


def rising(_: str) -> WindowMask:
    return WindowMask()


@dataclass(frozen=True)
class Layout:
    """A published layout of heads: its config.json, its tensors, and what they mean.

    features: the layers of the model whose inputs the head reads. rope: the parameters of its positions.
    """

    raw: dict[str, Any]
    features: tuple[int, ...]
    rope: dict[str, Any]
    tensors: Callable[[], Tensors] = head_tensors
    window: int = 1 << 20
    normalised_residual: bool = False
    normalised_output: bool = False


PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
SPECFORGE = Layout(RAW, (1, 2, 3), PLAIN)


def jointly_normalised() -> Tensors:
    return head_tensors() | {"input_norm.weight": torch.linspace(0.5, 1.5, 288)}


def without_features() -> Tensors:
    return {name: tensor for name, tensor in head_tensors().items() if name != "fc.weight"}


def of_speculators() -> Tensors:
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in head_tensors().items()}
    return renamed | {f"fc_norm.{number}.weight": torch.linspace(0.5, 1.5, 96) for number in range(3)}


TRAINED = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True}
TRAINED |= {"use_mtp_layernorm": False, "next_layer_regular": True}
MODELOPT = Layout(
    RAW
    | {"rope_scaling": {name: value for name, value in YARN.items() if name != "rope_theta"}, "rope_theta": 150000}
    | {"eagle_config": TRAINED | {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "norm_before_fc": True}},
    (2, 3, 4),
    YARN,
    jointly_normalised,
)
MODELOPT_WITHOUT_FEATURES = Layout(
    RAW | {"eagle_config": TRAINED | {"use_aux_hidden_state": False}}, (4,), PLAIN, without_features
)
SPECULATORS = Layout(
    {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 200,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
        "norm_before_residual": True,
        "norm_output": True,
        "fc_norm": True,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **{name: value for name, value in RAW.items() if name not in ("eagle_config", "rope_theta")},
            "model_type": "llama",
            "num_hidden_layers": 1,
            "attention_bias": False,
            "layer_types": ["sliding_attention"],
            "sliding_window": 20,
            "rope_parameters": PLAIN,
        },
    },
    (0, 1, 3),
    PLAIN,
    of_speculators,
    window=20,
    normalised_residual=True,
    normalised_output=True,
)


def reference_drafts(model: Model, layout: Layout, tokens: list[int], count: int) -> list[int]:
    """Draft greedily without a cache: all rows of the head are computed anew for each draft."""
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in layout.tensors().items()}
    sequence = Sequence("x", tokens[:-1], len(tokens), SamplingParams(max_tokens=1), 0)
    fresh = Model(model.config, model.weights, TorchOps(model.config), BLOCKS, 4096, features=layout.features)
    blocks = blocks_filled(len(tokens))
    tables = (BlockTable(list(range(blocks))), BlockTable(list(range(blocks, 2 * blocks))))
    sequence.blocks = KVCacheBlocks(tables=tables)
    features = fresh.forward(batch_of(ScheduledTokens(sequence, 0, len(tokens) - 1))).features
    assert features is not None
    hidden = reference_input(model, tensors, features)
    following, drafts = tokens[1:], []
    for _ in range(count):
        out = reference_layer(layout, tensors, hidden, model.weights.embedding[torch.tensor(following)])[-1:]
        normed = normalized(out, tensors["norm.weight"])
        best = int(functional.linear(normed, tensors["lm_head.weight"]).argmax())
        drafts.append(best + int(tensors["d2t"][best]))
        following.append(drafts[-1])
        hidden = torch.cat((hidden, normed if layout.normalised_output else out))
    return drafts


def reference_input(model: Model, tensors: Tensors, features: torch.Tensor) -> torch.Tensor:
    if "fc.weight" not in tensors:
        return normalized(features, model.weights.norm)
    if "input_norm.weight" in tensors:
        features = normalized(features, tensors["input_norm.weight"])
    if "fc_norm.0.weight" in tensors:
        parts = enumerate(features.split(96, dim=-1))
        features = torch.cat([normalized(part, tensors[f"fc_norm.{n}.weight"]) for n, part in parts], dim=-1)
    return functional.linear(features, tensors["fc.weight"])


def reference_layer(layout: Layout, tensors: Tensors, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    layer = {name.removeprefix("midlayer."): tensor for name, tensor in tensors.items()}
    normed = normalized(hidden, layer["hidden_norm.weight"])
    x = torch.cat((normalized(embedded, layer["input_layernorm.weight"]), normed), dim=-1)
    q, k, v = (functional.linear(x, layer[f"self_attn.{n}_proj.weight"]).view(len(x), -1, 32) for n in "qkv")
    frequencies, factor = rope_of_transformers(layout.rope, 32)
    angles = torch.arange(len(x))[:, None] * frequencies
    q, k = (reference.rotate(part, angles.cos() * factor, angles.sin() * factor) for part in (q, k))
    distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
    seen = (distances >= 0) & (distances < layout.window)
    mixed = functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.expand(-1, 2, -1).transpose(0, 1), v.expand(-1, 2, -1).transpose(0, 1), attn_mask=seen
    )
    residual = normed if layout.normalised_residual else hidden
    x = residual + functional.linear(mixed.transpose(0, 1).reshape(len(x), -1), layer["self_attn.o_proj.weight"])
    normed = normalized(x, layer["post_attention_layernorm.weight"])
    gate = functional.silu(functional.linear(normed, layer["mlp.gate_proj.weight"]))
    inner = gate * functional.linear(normed, layer["mlp.up_proj.weight"])
    return x + functional.linear(inner, layer["mlp.down_proj.weight"])


def rope_of_transformers(rope: dict[str, Any], head_size: int) -> tuple[torch.Tensor, float]:
    if rope["rope_type"] == "default":
        return 1 / rope["rope_theta"] ** (torch.arange(0, head_size, 2) / head_size), 1.0
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](LlamaConfig(head_dim=head_size, rope_parameters=dict(rope)), CPU)


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(GREEDY, id="greedy"),
        pytest.param(WARM, id="temperature"),
        pytest.param(replace(WARM, top_p=0.8, presence_penalty=0.5, top_logprobs=2), id="restricted"),
    ],
)
def test_tokens_are_same_with_and_without_head(model: Model, folder: Path, params: SamplingParams) -> None:
    """Half of the drafts are replaced by the right tokens, since those of a random head are wrong."""
    expected = answers(plain(model), requests(params))
    known = {name: [each.sampled.token for each in updates] for name, updates in expected.items()}

    def changed(drafts: list[int], sequence: Sequence) -> list[int]:
        right = known[sequence.id][sequence.generated :][: len(drafts)]
        return right if len(sequence.tokens) % 2 else drafts

    for capture in (None, replayed):
        engine, drafter = observed(model, folder, changed, capture)
        assert_equal(answers(engine, requests(params)), expected)
        metrics = engine.metrics()
        assert 0 < metrics.accepted_tokens < metrics.drafted_tokens
        assert len(drafter.proposed) > 20


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
def test_answers_with_head_survive_cancels_and_preemption(
    model: Model, folder: Path, kv_dtype: torch.dtype | None
) -> None:
    """Few blocks, shared prefixes, and all ways of sampling: each answer is the one of an engine without drafts."""
    config = model.config
    model = Model(config, model.weights, TorchOps(config), BLOCKS, BLOCKS * 64, kv_dtype, features=(1, 2, 3))
    source = random.Random(4)
    ways = (GREEDY, WARM, replace(WARM, top_p=0.8), replace(WARM, frequency_penalty=1.0, logit_bias=((5, 3.0),)))
    shared = source.choices(range(500), k=130)
    wanted = [
        Request(
            (f"{number}",),
            shared[: source.choice((0, 64, 130))] + source.choices(range(500), k=source.randrange(1, 90)),
            replace(ways[number % 4], seed=number, max_tokens=source.randrange(1, 40)),
            "rising" if number % 5 == 0 else None,
        )
        for number in range(30)
    ]
    expected = {name: tokens_of(updates, name) for name, updates in answers(plain(model), wanted).items()}

    def changed(drafts: list[int], sequence: Sequence) -> list[int]:
        right = expected[sequence.id][sequence.generated :][: len(drafts)]
        return right if len(sequence.tokens) % 3 else drafts

    limits = replace(LIMITS, sequences=6, verified=24)
    engine, drafter = observed(model, folder, changed, None, limits, blocks=14)
    found: dict[str, list[int]] = {each.ids[0]: [] for each in wanted}
    cancelled: set[str] = set()
    for request in wanted:
        engine.add(request)
        for _ in range(source.randrange(4)):
            for update in engine.step():
                assert update.id not in cancelled
                found[update.id].append(update.sampled.token)
        if source.random() < 0.2:
            cancelled.add(request.ids[0])
            engine.cancel(request.ids[0])
    for update in drain(engine):
        assert update.id not in cancelled
        found[update.id].append(update.sampled.token)
    for name, tokens in found.items():
        assert tokens == (expected[name][: len(tokens)] if name in cancelled else expected[name]), name
    metrics = engine.metrics()
    assert metrics.preemptions > 0
    assert metrics.cached_tokens > 0
    assert metrics.pages_used == 0
    assert 0 < metrics.accepted_tokens < metrics.drafted_tokens
    assert not drafter._drafter._lengths


@pytest.mark.parametrize(
    ("layout", "capture"),
    [
        pytest.param(SPECFORGE, None, id="SpecForge"),
        pytest.param(SPECFORGE, replayed, id="SpecForge, captured"),
        pytest.param(MODELOPT, None, id="ModelOpt"),
        pytest.param(MODELOPT_WITHOUT_FEATURES, None, id="ModelOpt, final states"),
        pytest.param(SPECULATORS, None, id="speculators"),
    ],
)
def test_drafts_are_those_of_head_without_cache(
    model: Model, tmp_path: Path, layout: Layout, capture: Capture | None
) -> None:
    """Prompts are computed in several steps; after rejected and accepted drafts, the head goes on at the right row."""
    folder = write_head(tmp_path / "head", layout.raw, layout.tensors())
    config = read_draft_head_config(folder, model.config)
    assert config.features == layout.features
    model = Model(model.config, model.weights, TorchOps(model.config), BLOCKS, BLOCKS * 64, features=layout.features)
    source = {name: [each.sampled.token for each in u] for name, u in answers(plain(model), requests(GREEDY)).items()}

    def changed(drafts: list[int], sequence: Sequence) -> list[int]:
        right = source[sequence.id][sequence.generated :][: len(drafts)]
        return right[: len(sequence.tokens) % 3] + drafts[len(sequence.tokens) % 3 :]

    engine, drafter = observed(model, folder, changed, capture)
    answers(engine, requests(GREEDY))
    assert engine.metrics().accepted_tokens > 10
    assert {len(drafts) for _, drafts in drafter.proposed} >= {1, DRAFTS}
    for tokens, drafts in drafter.proposed[::4]:
        assert drafts == reference_drafts(model, layout, tokens, len(drafts))


def test_drafts_are_drawn_like_tokens_of_model(model: Model) -> None:
    """A head that predicts what the model does drafts what is sampled, also with a vocabulary of its own."""
    source = torch.Generator().manual_seed(1)
    ids, logits = torch.randperm(512, generator=source)[:200], torch.randn(6, 200, generator=source) * 2

    class Known:
        def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return logits, ids

    state = State(2, 8, 512, BLOCKS, CPU)
    bases = [seed_base(seed) for seed in range(9)]
    state.temperatures.copy_(torch.tensor([0.0, 0.5, 1.0] * 3))
    state.seeds.copy_(torch.tensor([signed(base) for base in bases], dtype=torch.int32))
    drafter = HeadDrafter(Known(), state, Entries(state), DRAFTS)  # type: ignore[arg-type]
    entries, places = torch.tensor([4, 0, 1, 2, 7, 8]), torch.tensor([9, 8, 9, 10, 500, 1])
    whole = torch.full((6, 512), -torch.inf)
    whole[:, ids] = logits
    seeds = torch.tensor([row_seed(bases[entry], place) for entry, place in zip(entries, places.tolist(), strict=True)])
    expected = draw(whole, state.temperatures[entries], seeds)
    assert torch.equal(drafter._drawn(logits, entries, places, is_random=True), expected)
    assert not torch.equal(expected, whole.argmax(-1))


LLAMA = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FEW_KEYS = {name: YARN[name] for name in ("rope_type", "rope_theta", "factor", "original_max_position_embeddings")}


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param(LLAMA, id="llama3"),
        pytest.param(YARN, id="yarn"),
        pytest.param(FEW_KEYS, id="yarn with defaults"),
        pytest.param(YARN | {"attention_factor": 1.5, "truncate": True}, id="yarn with a factor"),
        pytest.param(YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}, id="yarn with scales"),
    ],
)
def test_scaled_positions_of_head_match_transformers(tmp_path: Path, model: Model, rope: dict[str, Any]) -> None:
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    raw = RAW | {"rope_scaling": scaling, "rope_theta": rope["rope_theta"]}
    found = read_draft_head_config(write_head(tmp_path / "head", raw), model.config).rope
    frequencies, factor = rope_of_transformers(rope, 64)
    torch.testing.assert_close(found.frequencies(64), frequencies)
    assert found.concentration == pytest.approx(factor)


def test_layers_that_head_reads_are_inputs_for_speculators_and_outputs_otherwise(tmp_path: Path, model: Model) -> None:
    """A head of ModelOpt whose layers can only be inputs names inputs. Without a list, they are those of EAGLE-3."""
    deep = replace(model.config, windows=(16, None) * 18)
    nested = {name: value for name, value in RAW.items() if name != "eagle_config"}
    layouts: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        (RAW | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}, (2, 18, 33)),
        (RAW | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 30, 36]}}, (24, 30, 36)),
        ({"transformer_layer_config": nested, "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, (2, 18, 33)),
        (nested, (2, 18, 33)),
    ]
    for number, (raw, features) in enumerate(layouts):
        folder = write_head(tmp_path / f"{number}", raw)
        assert read_draft_head_config(folder, deep).features == features


def test_head_without_unembedding_has_that_of_model(tmp_path: Path, model: Model) -> None:
    tensors = {name: tensor for name, tensor in head_tensors().items() if name not in ("lm_head.weight", "d2t", "t2d")}
    folder = write_head(tmp_path / "head", RAW | {"draft_vocab_size": None}, tensors)
    config = read_draft_head_config(folder, model.config)
    weights = load_draft_head(folder, config, model.weights)
    assert weights.unembedding is model.weights.unembedding
    assert torch.equal(weights.ids, torch.arange(512))


def test_warm_up_with_head_leaves_tokens_alone(model: Model, folder: Path) -> None:
    expected = answers(plain(model), requests(WARM))
    config = read_draft_head_config(folder, model.config)
    head = DraftHead(config, load_draft_head(folder, config, model.weights), model.config, BLOCKS, BLOCKS * 64)
    runner = ModelRunner(model, CPU, 4096, 8, replayed, DRAFTS, draft_head=head)
    runner.warm_up(64, lambda *_: None)
    engine, _ = engine_over(runner, BLOCKS, LIMITS, kv_groups=model.config.kv_groups, drafter=runner.drafter)
    assert_equal(answers(engine, requests(WARM)), expected)
    assert engine.metrics().drafted_tokens > 0


def test_setting_of_head_makes_engine_draft(checkpoint: Path, folder: Path) -> None:
    config = GptOssConfig(checkpoint=str(checkpoint), device="cpu", memory_share=0.01, draft_tokens=2)
    settings = config.engine(checkpoint, folder)
    engine = assemble(settings, lambda _: None)
    engine.add(Request(("one",), [1, 2, 3], GREEDY))
    assert len(tokens_of(drain(engine), "one")) == 24
    assert engine.metrics().drafted_tokens > 0


def test_head_without_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="draft_head needs draft_tokens"):
        GptOssConfig(checkpoint="x", draft_head="y")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "does not belong to a model with 96 and 4"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]}}, "reads the inputs of layers"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "for which there is no kernel"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({"num_hidden_layers": 2}, r"has several layers \(num_hidden_layers\)"),
        ({"attention_bias": True}, "has biases in its attention"),
        ({"speculators_model_type": "peagle"}, "a head of the kind peagle"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"intermediate_size": None}, "does not describe an EAGLE-3 head"),
    ],
)
def test_config_of_other_head_is_error(tmp_path: Path, model: Model, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_draft_head_config(write_head(tmp_path / "head", RAW | changes), model.config)


# The configuration of the dense head for gpt-oss-20b in SpecForge, configs/gpt-oss-20B-eagle3-dense.json.
SPECFORGE_20B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 21]},
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initializer_range": 0.02,
    "intermediate_size": 17280,
    "num_local_experts": 16,
    "max_position_embeddings": 4096,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.3",
    "use_cache": True,
    "vocab_size": 201088,
    "experts_per_token": 4,
    "draft_vocab_size": 32000,
}


def test_config_of_specforge_for_20b_is_read(tmp_path: Path) -> None:
    """It names layers whose outputs the head reads; the stretched positions of the model are not its own."""
    (tmp_path / "config.json").write_text(json.dumps(SPECFORGE_20B))
    assert read_draft_head_config(tmp_path, GPT_OSS_20B) == DraftHeadConfig(
        hidden=2880,
        intermediate=17280,
        head_size=64,
        query_heads=64,
        kv_heads=8,
        vocabulary=32000,
        features=(2, 12, 22),
        rope=DraftHeadRope(10000.0),
        norm_epsilon=1e-5,
        norm_before_residual=False,
    )


# The layer of published heads for gpt-oss, whose names begin with `midlayer.` or `layers.0.`.
PUBLISHED_LAYER = {
    "input_layernorm": (2880,),
    "hidden_norm": (2880,),
    "self_attn.q_proj": (4096, 5760),
    "self_attn.k_proj": (512, 5760),
    "self_attn.v_proj": (512, 5760),
    "self_attn.o_proj": (2880, 4096),
    "post_attention_layernorm": (2880,),
    "mlp.gate_proj": (17280, 2880),
    "mlp.up_proj": (17280, 2880),
    "mlp.down_proj": (2880, 17280),
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
OF_MODELOPT = SPECFORGE_20B | {"model_type": "llama", "draft_vocab_size": 201088, "rope_theta": 500000.0}
OF_MODELOPT |= {"rope_scaling": LLAMA3, "attention_bias": False, "mlp_bias": False}
OF_SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "norm_before_fc": True,
    "transformer_layer_config": {name: value for name, value in SPECFORGE_20B.items() if name != "eagle_config"},
}
REDUCED = {"lm_head.weight": (32000, 2880), "d2t": (32000,), "t2d": (201088,)}  # of a vocabulary of 32,000 tokens
NORMED = {"input_norm.weight": (8640,)}


def write_published(folder: Path, raw: dict[str, Any], prefix: str, others: dict[str, tuple[int, ...]]) -> Path:
    """Write a head of zeros in a sparse file."""
    shapes = {"fc.weight": (2880, 8640), "norm.weight": (2880,), **others}
    shapes |= {f"{prefix}{name}.weight": shape for name, shape in PUBLISHED_LAYER.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        kind, size = {"d2t": ("I64", 8), "t2d": ("BOOL", 1)}.get(name, ("BF16", 2))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end := end + size * math.prod(shape)]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    ("raw", "prefix", "others", "features"),
    [
        pytest.param(SPECFORGE_20B, "midlayer.", REDUCED, (2, 12, 22), id="SpecForge"),
        pytest.param(
            OF_MODELOPT | {"eagle_config": TRAINED | {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}},
            "midlayer.",
            {},
            (2, 18, 33),
            id="ModelOpt",
        ),
        pytest.param(
            OF_MODELOPT
            | {"eagle_config": TRAINED | {"eagle_aux_hidden_state_layer_ids": [24, 30, 36], "norm_before_fc": True}},
            "midlayer.",
            NORMED,
            (24, 30, 36),
            id="ModelOpt, normed",
        ),
        pytest.param(
            OF_SPECULATORS,
            "layers.0.",
            REDUCED | NORMED | {"verifier_lm_head.weight": (32000, 2880)},
            (2, 18, 33),
            id="speculators",
        ),
    ],
)
def test_names_and_shapes_of_published_heads_are_read(
    tmp_path: Path, raw: dict[str, Any], prefix: str, others: dict[str, tuple[int, ...]], features: tuple[int, ...]
) -> None:
    """For gpt-oss-120b, or the 20b in SpecForge. A head with all tokens has the model's unembedding."""
    model = GPT_OSS_20B if raw is SPECFORGE_20B else GPT_OSS_120B
    table = torch.zeros(1, dtype=torch.bfloat16).expand(201088, 2880)
    weights = Weights(embedding=table, layers=(), norm=table[0], unembedding=table)
    config = read_draft_head_config(write_published(tmp_path, raw, prefix, others), model)
    assert config.features == features
    head = load_draft_head(tmp_path, config, weights)
    assert head.qkv.shape == (4096 + 512 + 512, 5760)
    assert head.unembedding.shape == ((32000, 2880) if "d2t" in others else (201088, 2880))
    assert [len(norm) for norm in head.feature_norms] == ([8640] if "input_norm.weight" in others else [])


def test_head_with_experts_is_error(tmp_path: Path) -> None:
    """SpecForge has such a configuration too, configs/gpt-oss-20B-eagle3-moe.json."""
    (tmp_path / "config.json").write_text(json.dumps(SPECFORGE_20B | {"architectures": ["GptOssForCausalLMEagle3"]}))
    with pytest.raises(CheckpointError, match=r"a head that has experts \(GptOssForCausalLMEagle3\)"):
        read_draft_head_config(tmp_path, GPT_OSS_20B)


def test_head_is_read_by_other_names_of_its_layer(tmp_path: Path, model: Model, folder: Path) -> None:
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in head_tensors().items()}
    raw = {name: value for name, value in RAW.items() if name != "eagle_config"}
    other = write_head(tmp_path / "head", raw | {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, renamed)
    configs = [read_draft_head_config(each, model.config) for each in (folder, other)]
    assert configs[0] == configs[1]
    one, two = (load_draft_head(each, configs[0], model.weights) for each in (folder, other))
    assert torch.equal(one.qkv, two.qkv)
    assert torch.equal(one.down, two.down)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", None, "lacks the tensor fc.weight"),
        ("midlayer.mlp.up_proj.weight", torch.zeros(64, 96), r"has the shape \[64, 96\], not \[128, 96\]"),
        ("d2t", torch.arange(200) * 2, "not in the model's vocabulary"),
        ("fc.bias", torch.zeros(96), "has the tensor fc.bias, which is not supported"),
        ("midlayer.self_attn.q_norm.weight", torch.ones(32), r"q_norm.weight, which is not supported"),
    ],
)
def test_damaged_head_is_error(
    tmp_path: Path, model: Model, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    tensors = head_tensors()
    tensors |= {name: tensor} if tensor is not None else {}
    if tensor is None:
        del tensors[name]
    folder = write_head(tmp_path / "head", tensors=tensors)
    config = read_draft_head_config(folder, model.config)
    with pytest.raises(CheckpointError, match=message):
        load_draft_head(folder, config, model.weights)
