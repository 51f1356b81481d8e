"""`headrace bench quality`: invalid flags are reported before an engine is started."""

import pytest
import typer
from typer.testing import CliRunner

from headrace_bench.quality import command
from headrace_bench.quality.command import bench_quality
from headrace_core.observations import ObservationRequest

app = typer.Typer()
app.command()(bench_quality)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "there is nothing to compare A with: give --b KNOBS, or --reference transformers"),
        (("--b", "chunk=1"), "--b chunk: is not a knob"),
        (("--b", "", "--margin", "0"), "--margin 0: must be more than 0"),
        (("--b", "", "--confidence", "95"), "--confidence 95: must be at least 0.5 and less than 1"),
        (("--reference", "vllm"), "--reference vllm: only transformers is known"),
        (("--b", "", "--reference-dtype", "float32"), "needs --reference transformers"),
        (("--reference", "transformers", "--reference-dtype", "int8"), "must be one of float32, bfloat16, float16"),
        (("--b", "", "--prompts", "/nowhere.jsonl"), "--prompts /nowhere.jsonl: cannot be read"),
    ],
)
def test_an_invalid_flag_gives_one_line_and_exit_code_2(
    flags: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "observe", None)  # an engine would fail the test
    result = CliRunner().invoke(app, ["model", *flags], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())


def test_the_flags_become_a_request() -> None:
    plan = command.make_plan(
        "m", a="max_num_seqs=4", b=None, reference="transformers", reference_dtype="bfloat16", concurrency=2,
        prompts="built-in", text_tokens=9, output_tokens=3, margin=0.02, min_agreement=0.7, confidence=0.9, seed=5,
        device="cpu", threads=None,
    )  # fmt: skip
    request = plan.request
    assert [(side.label, dict(side.values)) for side in request.sides] == [("A", {"max_num_seqs": 4})]
    assert (request.reference, request.reference_dtype, request.seed, request.concurrency) == (True, "bfloat16", 5, 2)
    assert (plan.rules.margin, plan.rules.least_agreement, plan.rules.confidence) == (0.02, 0.7, 0.9)
    assert ObservationRequest.from_json(request.to_json()) == request
