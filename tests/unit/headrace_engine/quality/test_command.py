"""`headrace bench quality` from the command line: tables, JSON, exit codes, errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import typer
from typer.testing import CliRunner, Result

from headrace_cli.bench import BENCHES
from headrace_cli.lazy import load
from headrace_engine.quality import sides
from headrace_engine.quality.offline import Offline
from headrace_engine.quality.texts import BUILT_IN, read_texts

pytestmark = pytest.mark.auto_dtype
app = typer.Typer()
SMALL = ("--text-tokens", "24", "--output-tokens", "4", "--concurrency", "6", "--threads", "1")
FP32 = "dtype=float32"  # where the test's numbers are those of fp32; the others hold in each dtype
CROWDED = "prefill_chunk_size=5,num_blocks=24,block_size=4"


@app.callback()
def root() -> None:
    """A group, so that the command keeps its name."""


app.command("quality")(load("quality", BENCHES["quality"]).callback)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    """A random model in a folder, with defaults of generation that must not count."""
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


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As many texts as a verdict needs, and some."""
    where = tmp_path_factory.mktemp("texts") / "few.jsonl"
    where.write_text("\n".join(json.dumps({"id": item.name, "text": item.text}) for item in read_texts(BUILT_IN)[:20]))
    return str(where)


def call(folder: str, *flags: str) -> Result:
    return CliRunner().invoke(app, ["quality", folder, *SMALL, *flags], env={"COLUMNS": "80", "TERM": "dumb"})


def test_two_configs_and_transformers_agree(folder: str) -> None:
    result = call(folder, "--a", FP32, "--b", f"{FP32},{CROWDED}", "--reference", "transformers")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("46 texts, 6 at once, seed 0", "num_blocks=24", "preemptions", "same greedy output", "46 of 46"):
        assert part in text
    assert text.count("NonInferior") == 6  # for each of three pairs, in the table and with its sentence
    assert "Nothing moved further than rounding explains" in text
    assert "A" in result.stderr  # the bars


def test_in_whatever_dtype_this_machine_takes_nothing_is_worse(folder: str, few: str) -> None:
    """16 bit may leave too little to judge by (4), but chunks and preemptions never make a text worse (3)."""
    result = call(folder, "--b", CROWDED, "--reference", "transformers", "--prompts", few)
    assert result.exit_code in (0, 4), result.output


def test_the_json_has_all_of_it(folder: str, few: str) -> None:
    sides_of = ("--a", FP32, "--b", f"{FP32},{CROWDED}", "--reference", "transformers")
    result = call(folder, *sides_of, "--json", "--margin", "0.02", "--prompts", few)
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert [side["label"] for side in value["sides"]] == ["A", "B", "transformers"]
    assert [(pair["base"], pair["candidate"]) for pair in value["comparisons"]] == [
        ("A", "B"), ("transformers", "A"), ("transformers", "B"),
    ]  # fmt: skip
    assert (value["verdict"], value["exit_code"], value["settings"]["margin"]) == ("NonInferior", 0, 0.02)
    assert value["machine"]["device"] == "cpu"
    texts = value["sides"][0]["texts"]
    assert len(texts) == 20
    assert {len(item["output_ids"]) for item in texts.values()} == {4}
    assert {len(item["nll_prefill"]) for item in texts.values()} == {23}
    pair = value["comparisons"][0]
    assert pair["decode"]["tokens"] == sum(len(item["nll_decode"]) for item in texts.values())
    assert not pair["beyond_rounding"]
    assert pair["agreement"]["equal"]["estimate"] == 1.0


def test_the_same_config_twice_is_equal_to_the_last_bit(folder: str, few: str) -> None:
    result = call(folder, "--a", "max_num_seqs=4", "--b", "max_num_seqs=4", "--prompts", few)
    assert result.exit_code == 0
    assert "Every number is equal to the last bit" in result.stdout


def test_a_fault_is_inferior_with_its_first_differences(
    folder: str, few: str, quality: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sides.build

    def broken(spec: Any, model: Any, layers: Any) -> Offline:
        made = plain(spec, model, layers)
        return made if spec.label == "A" else quality.broken(made, model)

    monkeypatch.setattr(sides, "build", broken)
    result = call(folder, "--a", FP32, "--b", f"{FP32},prefill_chunk_size=5", "--prompts", few)
    assert result.exit_code == 3, result.output
    text = result.stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("Inferior", "Where A and B first write something else", "real", "more in --json", "fault"):
        assert part in text


def test_few_texts_are_inconclusive(folder: str, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"A short text, number {at}."}) for at in range(3)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    result = call(folder, "--b", "prefill_chunk_size=5", "--prompts", str(tmp_path / "mine.jsonl"))
    assert result.exit_code == 4, result.output
    assert "3 texts are too few to judge by" in result.stdout


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "there is nothing to compare A with: give --b KNOBS, or --reference transformers"),
        (("--b", "chunk=1"), "--b chunk: is not a knob"),
        (("--b", "", "--margin", "0"), "--margin 0: must be more than 0"),
        (("--b", "", "--confidence", "95"), "--confidence 95: must be at least 0.5 and less than 1"),
        (("--reference", "vllm"), "--reference vllm: only transformers is known"),
        (("--b", "", "--reference-dtype", "float32"), "needs --reference transformers"),
        (("--reference", "transformers", "--reference-dtype", "int8"), "must be one of float32"),
        (("--b", "", "--prompts", "/nowhere.jsonl"), "--prompts /nowhere.jsonl: cannot be read"),
        (("--b", "num_blocks=3,block_size=4"), "cannot run under this config"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(flags: tuple[str, ...], complaint: str, folder: str) -> None:
    result = call(folder, *flags)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())


def test_another_number_format_loads_another_model_and_is_judged(folder: str, few: str) -> None:
    result = call(
        folder, "--a", FP32, "--b", "dtype=bfloat16", "--reference", "transformers", "--json", "--prompts", few
    )
    assert result.exit_code in (0, 4), result.output
    value = json.loads(result.stdout)
    assert [side["dtype"] for side in value["sides"]] == ["float32", "bfloat16", "float32"]
    assert value["comparisons"][0]["decode"]["largest_move"][1] > 0
