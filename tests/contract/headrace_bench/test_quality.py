"""`headrace bench quality` with a real engine in a process of its own: tables, JSON, exit codes, errors."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headrace_bench.quality.texts import BUILT_IN, read_texts
from headrace_cli.bench import BENCHES
from headrace_cli.lazy import load

pytestmark = pytest.mark.auto_dtype
app = typer.Typer()
SMALL = ("--text-tokens", "24", "--output-tokens", "4", "--concurrency", "6", "--threads", "1")
FP32 = "dtype=float32"
CROWDED = "prefill_chunk_size=5,num_blocks=24,block_size=4"


@app.callback()
def root() -> None:
    """A group, so that the command keeps its name."""


app.command("quality")(load("quality", BENCHES["quality"]).callback)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As many texts as a verdict needs, and some."""
    where = tmp_path_factory.mktemp("texts") / "few.jsonl"
    where.write_text("\n".join(json.dumps({"id": item.name, "text": item.text}) for item in read_texts(BUILT_IN)[:20]))
    return str(where)


def call(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["quality", str(folder), *SMALL, *flags], env={"COLUMNS": "80", "TERM": "dumb"})


def test_two_configs_and_transformers_agree(model_folder: Path) -> None:
    result = call(model_folder, "--a", FP32, "--b", f"{FP32},{CROWDED}", "--reference", "transformers")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("46 texts, 6 at once, seed 0", "num_blocks=24", "preemptions", "same greedy output", "46 of 46"):
        assert part in text
    assert text.count("NonInferior") == 6  # for each of three pairs, in the table and with its sentence
    assert "Nothing moved further than rounding explains" in text
    assert "138/138" in result.stderr  # the bars


def test_the_json_has_all_of_it(model_folder: Path, few: str) -> None:
    sides_of = ("--a", FP32, "--b", f"{FP32},{CROWDED}", "--reference", "transformers")
    result = call(model_folder, *sides_of, "--json", "--margin", "0.02", "--prompts", few)
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


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--b", "num_blocks=3,block_size=4"), "cannot run under this config"),
        (("--b", "max_num_seqs=0"), "error: --b max_num_seqs: must be at least 1, got 0"),
    ],
)
def test_what_only_the_engine_can_tell_is_one_line_and_exit_code_2(
    flags: tuple[str, ...], complaint: str, model_folder: Path
) -> None:
    result = call(model_folder, *flags)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
