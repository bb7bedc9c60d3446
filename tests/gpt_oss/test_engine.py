"""The engine generates the same tokens in any company, and never loses a block."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llama_stack_gpt_oss.engine import reference
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS
from llama_stack_gpt_oss.engine.engine import Request
from llama_stack_gpt_oss.engine.errors import QueueFullError, RequestError
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits
from llama_stack_gpt_oss.harmony import render
from llama_stack_gpt_oss.vocabulary import Vocabulary

from .support.checkpoints import Size, random_tensors, resized, write_hugging_face
from .support.engines import WIDE, CountingRunner, drain, engine_over, generate, model_engine, tiny_model, tokens_of
from .support.lessons import draw
from .support.trained import write_trained

pytestmark = pytest.mark.usefixtures("experts_decoded_once")

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
STOPS = frozenset(range(0, 1009, 40))
TIGHT = Limits(sequences=4, step_tokens=32, waiting=100)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return tiny_model(checkpoint)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(512), k=length)


class RecordingMask:
    """A mask that allows all tokens, records the accepted ones, and fails after a number of them."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.received: list[int] = []
        self._fails_after = fails_after

    @property
    def failed(self) -> bool:
        return len(self.received) == self._fails_after

    def allowed(self) -> bytes:
        return b"\xff" * 128

    def accept(self, token: int) -> None:
        self.received.append(token)

    def rollback(self, count: int) -> None:
        raise AssertionError(count)


def reference_tokens(model: Model, start: list[int], count: int) -> list[int]:
    tokens = list(start)
    for _ in range(count):
        logits = reference.logits(model.weights, model.config, torch.tensor(tokens))
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(start) :]


@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 150])
def test_tokens_match_reference_across_blocks_and_windows(model: Model, length: int) -> None:
    engine, _ = model_engine(model)
    updates = generate(engine, prompt(length), replace(GREEDY, max_tokens=6, top_logprobs=3))
    assert tokens_of(updates, "one") == reference_tokens(model, prompt(length), 6)
    tokens = torch.tensor(prompt(length) + tokens_of(updates, "one"))
    shares = reference.logits(model.weights, model.config, tokens).log_softmax(-1)
    for place, update in enumerate(updates, length - 1):
        best = shares[place].topk(3)
        assert update.sampled.logprob == pytest.approx(best.values[0].item(), abs=1e-4)
        assert [token for token, _ in update.sampled.top] == best.indices.tolist()
        assert [share for _, share in update.sampled.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_tokens_match_reference_beyond_original_context(tmp_path: Path, size: Size) -> None:
    small = resized(size, original_context=64)
    short = tiny_model(write_hugging_face(tmp_path / "short", random_tensors(small), small))
    engine, _ = model_engine(short)
    assert tokens_of(generate(engine, prompt(170), GREEDY), "one") == reference_tokens(short, prompt(170), 12)


def test_bf16_logprobs_stay_close_to_reference(checkpoint: Path, model: Model) -> None:
    """The mean over some prompts is compared: rounding of single sums differs between kinds of processors."""
    half = tiny_model(checkpoint, dtype=torch.bfloat16)
    errors = []
    for length in range(20, 180, 20):
        engine, _ = model_engine(half)
        (update,) = generate(engine, prompt(length), replace(GREEDY, max_tokens=1, top_logprobs=1))
        shares = reference.logits(model.weights, model.config, torch.tensor(prompt(length)))[-1].log_softmax(-1)
        assert update.sampled.logprob is not None
        errors.append(abs(update.sampled.logprob - shares.max().item()))
    assert sum(errors) / len(errors) < 0.3


def test_trained_model_says_same_with_fp8_kv_cache(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """The answers are those of bf16 keys and values, and the log probabilities are close, but not the same."""
    folder = write_trained(tmp_path / "trained")
    models = [tiny_model(folder, kv_dtype=dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn)]
    differences = []
    for number in range(4):
        start = render(vocabulary, draw(random.Random(number)).chat, 4096)
        params = SamplingParams(max_tokens=25, temperature=0.0, top_logprobs=0, stop_ids=frozenset({200002, 200012}))
        plain, eight = (generate(model_engine(each)[0], start, params) for each in models)
        assert tokens_of(eight, "one") == tokens_of(plain, "one")
        for one, other in zip(plain, eight, strict=True):
            assert one.sampled.logprob is not None
            assert other.sampled.logprob is not None
            differences.append(abs(one.sampled.logprob - other.sampled.logprob))
    assert 0 < sum(differences) / len(differences) < 0.01


def test_tokens_are_same_alone_and_in_any_batch(model: Model) -> None:
    requests = {f"r{n}": prompt(random.Random(n).randrange(1, 200), n) for n in range(12)}
    alone = {}
    for name, start in requests.items():
        engine, _ = model_engine(model)
        alone[name] = tokens_of(generate(engine, start, GREEDY), "one")
    for limits, blocks in ((WIDE, 64), (TIGHT, 64), (replace(TIGHT, sequences=8), 8)):
        engine, cache = model_engine(model, limits, blocks)
        for name, start in requests.items():
            engine.add(Request((name,), start, GREEDY))
        updates = drain(engine)
        assert {name: tokens_of(updates, name) for name in requests} == alone
        assert cache.pool.used == 0
    assert engine.metrics().preemptions > 0


def test_prompt_in_parts_of_one_token_beside_decodes_has_same_answer(model: Model) -> None:
    """A part of one token has the shape of a decode, but no token is sampled after it."""
    narrow, _ = model_engine(model, replace(WIDE, sequences=4, step_tokens=4))
    expected = tokens_of(generate(model_engine(model)[0], prompt(20), replace(GREEDY, max_tokens=5)), "one")
    narrow.add(Request(("a", "b", "c"), prompt(3), replace(GREEDY, max_tokens=40)))
    for _ in range(4):
        narrow.step()
    assert tokens_of(generate(narrow, prompt(20), replace(GREEDY, max_tokens=5)), "one") == expected


def test_tokens_are_same_with_cached_prefix(model: Model) -> None:
    start = prompt(200)
    engine, _ = model_engine(model)
    first, second = (generate(engine, start, GREEDY) for _ in range(2))
    assert (first[0].cached, second[0].cached) == (0, 3 * BLOCK_TOKENS)
    assert tokens_of(first, "one") == tokens_of(second, "one")
    longer = [*start, *tokens_of(first, "one"), *prompt(30, 9)]
    fresh, _ = model_engine(model)
    assert tokens_of(generate(engine, longer, GREEDY), "one") == tokens_of(generate(fresh, longer, GREEDY), "one")


def test_cached_prefix_beyond_window_matches_reference(model: Model) -> None:
    """First with all blocks of the first answer still cached, then with those behind its windows reused."""
    first, longer = prompt(260), [*prompt(190), *prompt(40, 9)]
    for blocks, cached in ((64, 2 * BLOCK_TOKENS), (7, 0)):
        engine, _ = model_engine(model, TIGHT, blocks)
        generate(engine, first, replace(GREEDY, max_tokens=2))
        updates = generate(engine, longer, replace(GREEDY, max_tokens=8))
        assert updates[0].cached == cached
        tokens = tokens_of(updates, "one")
        best = reference.logits(model.weights, model.config, torch.tensor(longer + tokens)).argmax(-1)
        assert best[len(longer) - 1 : -1].tolist() == tokens


def test_long_context_holds_window_blocks_only_in_window_layers(model: Model) -> None:
    engine, cache = model_engine(model, TIGHT)
    engine.add(Request(("one",), prompt(1000), replace(GREEDY, max_tokens=4)))
    used = []
    while engine.busy:
        engine.step()
        used.append(cache.pool.used)
    # Of its 1,004 tokens, every block for the layers without a window; for the others, those in a step's window.
    assert 16 < max(used) <= 16 + 2
    assert used[-1] == 0


def test_request_waiting_for_blocks_is_counted_once() -> None:
    engine, _ = engine_over(CountingRunner(WIDE), blocks=6)
    for number in range(2):
        engine.add(Request((f"{number}",), prompt(150, number), GREEDY))
    drain(engine)
    assert engine.metrics().prompt_tokens == 300


def test_seed_gives_same_tokens_alone_and_in_batch(model: Model) -> None:
    warm = SamplingParams(max_tokens=12, temperature=1.0, top_p=0.95, seed=7)
    engine, _ = model_engine(model)
    alone = tokens_of(generate(engine, prompt(40), warm), "one")
    for number in range(5):
        engine.add(Request((f"other{number}",), prompt(30, number + 1), SamplingParams(max_tokens=20, seed=number)))
    engine.step()
    assert tokens_of(generate(engine, prompt(40), warm), "one") == alone
    assert tokens_of(generate(engine, prompt(40), replace(warm, seed=8)), "one") != alone


def test_several_answers_share_prompt_and_differ(model: Model) -> None:
    engine, cache = model_engine(model)
    engine.add(Request(("a", "b", "c"), prompt(150), SamplingParams(max_tokens=12, seed=3)))
    updates = drain(engine)
    assert len({tuple(tokens_of(updates, name)) for name in "abc"}) == 3
    # The second and third found the two full blocks of the prompt that the first had computed.
    assert {update.id: update.cached for update in updates} == {"a": 0, "b": 2 * BLOCK_TOKENS, "c": 2 * BLOCK_TOKENS}
    assert cache.pool.used == 0


def test_cancelled_first_answer_does_not_block_others(model: Model) -> None:
    engine, _ = model_engine(model, TIGHT)
    engine.add(Request(("a", "b"), prompt(150), GREEDY))
    engine.step()
    engine.cancel("a")
    assert len(tokens_of(drain(engine), "b")) == 12


def test_stop_ids_and_length_end_sequence(model: Model) -> None:
    engine, _ = model_engine(model)
    tokens = tokens_of(generate(engine, prompt(20), GREEDY), "one")
    updates = generate(engine, prompt(20), replace(GREEDY, stop_ids=frozenset([tokens[3]])))
    assert tokens_of(updates, "one") == tokens[: tokens.index(tokens[3]) + 1]
    assert [update.finish for update in updates][-1] == "stop"
    assert generate(engine, prompt(20), GREEDY)[-1].finish == "length"


def test_step_starts_before_previous_one_is_read() -> None:
    runner = CountingRunner(WIDE)
    engine, _ = engine_over(runner)
    assert len(generate(engine, prompt(10), replace(GREEDY, max_tokens=3))) == 3
    reads = [event for event in runner.events if event != "sample"]
    assert reads == ["start", "start", "read", "start", "read", "read"]


def test_mask_accepts_each_token_before_next_is_drawn() -> None:
    """A step starts without a wait for its mask, and samples after the tokens of the step before are accepted."""
    runner, mask = CountingRunner(WIDE), RecordingMask()
    engine, _ = engine_over(runner, open_mask=lambda _: mask)
    engine.add(Request(("one",), prompt(10), replace(GREEDY, max_tokens=3), grammar="any"))
    assert mask.received == tokens_of(drain(engine), "one")
    assert runner.events == ["start", "sample", "start", "read", "sample", "start", "read", "sample", "read"]


def test_sequence_ends_when_its_mask_fails() -> None:
    """The token with which it failed may be one that ends answers. The other sequence goes on."""
    tokens = tokens_of(generate(engine_over(CountingRunner(WIDE))[0], prompt(10), GREEDY), "one")
    engine, cache = engine_over(CountingRunner(WIDE), open_mask=lambda _: RecordingMask(fails_after=3))
    engine.add(Request(("one",), prompt(10), replace(GREEDY, stop_ids=frozenset([tokens[2]])), grammar="any"))
    engine.add(Request(("two",), prompt(10), GREEDY))
    updates = drain(engine)
    assert [update.finish for update in updates if update.id == "one"] == [None, None, "grammar"]
    assert tokens_of(updates, "two") == tokens
    assert cache.pool.used == 0


def test_token_drawn_after_stop_is_discarded() -> None:
    """The token is neither reported nor counted, and the block completed by the stop token is not found in the cache."""
    start = prompt(61)
    tokens = tokens_of(generate(engine_over(CountingRunner(WIDE))[0], start, GREEDY), "one")[:3]
    engine, cache = engine_over(CountingRunner(WIDE))
    updates = generate(engine, start, replace(GREEDY, stop_ids=frozenset(tokens[2:])))
    assert tokens_of(updates, "one") == tokens
    assert [update.finish for update in updates] == [None, None, "stop"]
    assert (engine.metrics().steps, engine.metrics().generated_tokens) == (4, 3)
    assert cache.pool.used == 0
    assert generate(engine, [*start, *tokens, 1], GREEDY)[0].cached == 0


def test_cancelled_request_gets_no_more_updates(model: Model) -> None:
    engine, cache = model_engine(model)
    engine.add(Request(("a",), prompt(100), GREEDY))
    engine.add(Request(("b",), prompt(90, 1), GREEDY))
    engine.step()
    engine.cancel("a")
    assert {update.id for update in drain(engine)} == {"b"}
    assert cache.pool.used == 0
    engine.cancel("a")  # a second cancel, after the end, has no effect


def test_lower_priority_numbers_run_first() -> None:
    limits = Limits(sequences=1, step_tokens=64, waiting=10)
    engine, _ = engine_over(CountingRunner(limits), limits=limits)
    for name, priority in (("late", 5), ("first", -1), ("then", 0)):
        engine.add(Request((name,), prompt(10), SamplingParams(max_tokens=2, priority=priority)))
    order = [update.id for update in drain(engine) if update.finish]
    assert order == ["first", "then", "late"]


def test_lowest_ranked_sequence_is_preempted_whenever_it_was_admitted() -> None:
    engine, _ = engine_over(CountingRunner(WIDE), blocks=12)
    engine.add(Request(("low",), prompt(60), SamplingParams(max_tokens=200, priority=1)))
    engine.step()
    engine.add(Request(("high",), prompt(60, 1), SamplingParams(max_tokens=200, priority=0)))
    assert [update.id for update in drain(engine) if update.finish] == ["high", "low"]
    assert engine.metrics().preemptions > 0


def test_full_queue_refuses_request_and_keeps_nothing() -> None:
    limits = Limits(sequences=1, step_tokens=64, waiting=2)
    engine, cache = engine_over(CountingRunner(limits), limits=limits)
    for number in range(3):
        engine.add(Request((f"r{number}",), [1], GREEDY))
    with pytest.raises(QueueFullError, match="3 requests are queued already, and the maximum is 2"):
        engine.add(Request(("over",), [1], GREEDY))
    assert "over" not in {update.id for update in drain(engine)}
    assert cache.pool.used == 0


def test_request_that_can_never_run_is_refused() -> None:
    engine, _ = engine_over(CountingRunner(WIDE), blocks=4)
    with pytest.raises(RequestError, match="The prompt has 128 tokens, and the context of 128 tokens"):
        engine.add(Request(("x",), prompt(128), GREEDY))
    with pytest.raises(RequestError, match="The prompt is empty"):
        engine.add(Request(("x",), [], GREEDY))
    assert not engine.busy


def test_answer_ends_at_context_length() -> None:
    engine, _ = engine_over(CountingRunner(WIDE), blocks=4)
    updates = generate(engine, prompt(120), replace(GREEDY, max_tokens=10_000))
    assert (len(updates), updates[-1].finish) == (8, "length")


def test_decoding_continues_during_long_prompt() -> None:
    limits = Limits(sequences=4, step_tokens=16, waiting=10)
    engine, _ = engine_over(CountingRunner(limits), limits=limits)
    engine.add(Request(("short",), [1], replace(GREEDY, max_tokens=50)))
    engine.step()
    engine.add(Request(("long",), prompt(150), GREEDY))
    assert all("short" in {update.id for update in engine.step()} for _ in range(10))


@pytest.mark.parametrize("blocks", [14, 40])
def test_thousand_requests_with_cancels_free_all_blocks(blocks: int) -> None:
    source = random.Random(blocks)
    limits = Limits(sequences=8, step_tokens=100, waiting=20)
    engine, cache = engine_over(CountingRunner(limits), blocks, limits)
    expected: dict[str, int] = {}
    alive: list[str] = []
    for number in range(1000):
        common = prompt(source.choice((0, 64, 200)), seed=source.randrange(3))
        start = common + prompt(source.randrange(1, 250), seed=number)
        names = tuple(f"{number}.{choice}" for choice in range(source.choice((1, 1, 3))))
        params = SamplingParams(max_tokens=source.randrange(1, 60), priority=source.randrange(3), stop_ids=STOPS)
        try:
            engine.add(Request(names, start, params))
        except QueueFullError:
            drained = [update for _ in range(20) for update in engine.step()]
            alive = [name for name in alive if name not in {u.id for u in drained if u.finish}]
            continue
        expected |= dict.fromkeys(names, params.max_tokens)
        alive += names
        for _ in range(source.randrange(4)):
            engine.step()
        if alive and source.random() < 0.4:
            for name in source.sample(alive, k=min(len(alive), source.randrange(1, 4))):
                engine.cancel(name)
    drain(engine)
    assert cache.pool.used == 0
    assert cache.pool.available == blocks
    assert engine.metrics().preemptions > 0 or blocks == 40
    assert engine.metrics().cached_tokens > 0
