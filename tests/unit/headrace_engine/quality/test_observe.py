"""Sides of one request, observed in this process, and the verdict of their comparison."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from headrace_bench.quality.run import QualityPlan, QualityResult, evaluate
from headrace_bench.quality.specs import parse
from headrace_bench.quality.texts import BUILT_IN, read_texts
from headrace_bench.quality.verdict import QualityVerdict, VerdictRules
from headrace_core.observations import Number, ObservationRequest, Passage
from headrace_engine.errors import SettingsError
from headrace_engine.quality import sides
from headrace_engine.quality.observe import observe_all
from headrace_engine.quality.offline import Offline

pytestmark = pytest.mark.auto_dtype
FP32 = "dtype=float32"  # where the test's numbers are those of fp32; the others hold in each dtype
CROWDED = "prefill_chunk_size=5,num_blocks=24,block_size=4"
FEW = read_texts(BUILT_IN)[:20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    """A random model in a folder, with generation defaults that must be ignored."""
    where = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        head_dim=8, vocab_size=257, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config = transformers.GenerationConfig(repetition_penalty=5.0)
    model.save_pretrained(where)
    tokenizer.save_pretrained(where)
    return str(where)


class Counted:
    """Counts the parts that were announced and those that were done."""

    def __init__(self) -> None:
        self.total: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def begin(self, what: str, total: int) -> Callable[[], None]:
        self.total[what], self.done[what] = total, 0

        def step() -> None:
            self.done[what] += 1

        return step


def asked(folder: str, a: str, b: str, *, reference: bool = False, texts: tuple[Passage, ...] = FEW) -> QualityPlan:
    request = ObservationRequest(
        model=folder, sides=(parse("A", a), parse("B", b)), reference=reference, reference_dtype=None, texts=texts,
        text_tokens=24, output_tokens=4, concurrency=6, seed=0, device="auto", threads=1,
    )  # fmt: skip
    return QualityPlan(request=request, rules=VerdictRules())


def judged(plan: QualityPlan) -> QualityResult:
    return evaluate(plan, observe_all(plan.request, Counted()))


def test_two_configs_and_transformers_agree_and_progress_ends_where_it_should(folder: str) -> None:
    plan, bars = asked(folder, FP32, f"{FP32},{CROWDED}", reference=True), Counted()
    seen = observe_all(plan.request, bars)
    assert [side.label for side in seen.sides] == ["A", "B", "transformers"]
    assert bars.total == bars.done
    assert sorted(bars.total.values()) == [40, 60, 60]
    assert seen.sides[1].seen.tally.preemptions > 0
    assert {choice.token for side in seen.sides for item in side.seen.outcomes.values() for choice in item.greedy} == (
        set(seen.words)
    )
    assert seen.machine["threads"] == 1
    found = evaluate(plan, seen)
    assert [finding.verdict for _, finding in found.pairs] == [QualityVerdict.NON_INFERIOR] * 3
    assert not any(comparison.beyond_rounding for comparison, _ in found.pairs)


def test_in_this_machines_default_dtype_nothing_is_worse(folder: str) -> None:
    """In 16 bits the result may be inconclusive, but chunks and preemptions never make a text worse."""
    found = judged(asked(folder, "", CROWDED, reference=True))
    assert found.decision.verdict is not QualityVerdict.INFERIOR


def test_the_same_config_twice_is_equal_to_the_last_bit(folder: str) -> None:
    ((comparison, _),) = judged(asked(folder, "max_num_seqs=4", "max_num_seqs=4")).pairs
    assert comparison.decode.largest_move[1] == comparison.prefill.largest_move[1] == 0
    assert comparison.agreement.differences == ()


def test_a_fault_is_inferior_with_its_first_differences(
    folder: str, quality: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sides.build

    def broken(side: Any, model: Any, layers: Any) -> Offline:
        made = plain(side, model, layers)
        return made if side.spec.label == "A" else quality.broken(made, model)

    monkeypatch.setattr(sides, "build", broken)
    found = judged(asked(folder, FP32, f"{FP32},prefill_chunk_size=5"))
    ((comparison, finding),) = found.pairs
    assert finding.verdict is QualityVerdict.INFERIOR
    assert comparison.beyond_rounding
    assert any(not item.is_tie for item in comparison.agreement.differences)
    assert all(item.base_token in found.words for item in comparison.agreement.differences)


def test_few_texts_are_inconclusive(folder: str) -> None:
    texts = tuple(Passage(str(at), f"A short text, number {at}.") for at in range(3))
    found = judged(asked(folder, "", "prefill_chunk_size=5", texts=texts))
    assert found.decision.verdict is QualityVerdict.INCONCLUSIVE
    assert "3 texts are too few to judge by" in found.decision.sentence


def test_another_number_format_loads_another_model_and_is_judged(folder: str) -> None:
    found = judged(asked(folder, FP32, "dtype=bfloat16", reference=True))
    assert [side.dtype for side in found.sides] == [Number.FLOAT32, Number.BFLOAT16, Number.FLOAT32]
    assert found.pairs[0][0].decode.largest_move[1] > 0
    assert found.decision.verdict is not QualityVerdict.INFERIOR


def test_a_config_that_cannot_hold_a_text_is_named(folder: str) -> None:
    with pytest.raises(SettingsError, match="cannot run under this config"):
        judged(asked(folder, "", "num_blocks=3,block_size=4"))
