"""`headrace sim replay`: exit codes, and what is told of a recording that does not replay."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace_cli.main import app
from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import Request, StepResult
from headrace_core.trace.record import RecordingScheduler


@pytest.fixture
def lines() -> list[str]:
    made: list[str] = []
    config = resolve({"max_num_seqs": 4, "max_num_batched_tokens": 16})
    s = RecordingScheduler(config, num_blocks=20, max_model_len=40, write=made.append)
    for name in ("[a]", "b"):
        s.submit(Request(request_id=name, prompt_token_ids=(1, 2, 3), max_tokens=5, arrival=0.0), 0.0)
    while (plan := s.plan(1.0)) is not None:
        s.commit(plan, StepResult(tokens={row.request_id: 7 for row in plan.seqs}), 2.0)
    return made


def run(tmp_path: Path, lines: list[str], *options: str) -> Result:
    file = tmp_path / "recording.jsonl"
    file.write_text("".join(lines))
    return CliRunner().invoke(app, ["sim", "replay", str(file), *options])


def test_a_recording_that_replays(tmp_path: Path, lines: list[str]) -> None:
    done = run(tmp_path, lines)
    assert (done.exit_code, done.stdout) == (0, "The same: 13 calls, 5 steps, 14 outcomes.\n")


def test_a_truncated_recording_replays_up_to_there(tmp_path: Path, lines: list[str]) -> None:
    done = run(tmp_path, [*lines[:-1], lines[-1][:9]])
    assert done.exit_code == 0
    assert f"Line {len(lines)} is cut short" in done.stdout


def test_a_difference_exits_1_and_shows_both_texts(tmp_path: Path, lines: list[str]) -> None:
    wrong = lines[3].replace('["[a]","p!"', '["[a]","p"')
    assert wrong != lines[3]
    done = run(tmp_path, [*lines[:3], wrong, *lines[4:]])
    assert done.exit_code == 1
    assert "Line 4: the scheduler gave another answer" in done.stdout
    recorded, replayed = done.stdout.splitlines()[2:4]
    assert '["[a]","p",' in recorded
    assert '["[a]","p!",' in replayed


@pytest.mark.parametrize(("line", "text"), [(0, '{"format":"x"}\n'), (4, "nonsense\n")])
def test_what_cannot_be_replayed_exits_1_and_says_where(tmp_path: Path, lines: list[str], line: int, text: str) -> None:
    lines[line] = text
    done = run(tmp_path, lines)
    assert done.exit_code == 1
    assert f"Line {line + 1}: " in done.stdout


def test_bytes_that_are_no_text_are_told_like_any_other_line(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "recording.jsonl"
    file.write_bytes("".join(lines[:4]).encode() + b"\xff\xfe\n")
    done = CliRunner().invoke(app, ["sim", "replay", str(file)])
    assert done.exit_code == 1
    assert "Line 5: not a JSON object" in done.stdout


def test_json_has_the_whole_report(tmp_path: Path, lines: list[str]) -> None:
    done = run(tmp_path, lines, "--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["ok"], report["lines"], report["problem"]) == (0, True, len(lines), None)
    wrong = lines[3].replace('"p!"', '"p"', 1)
    report = json.loads(run(tmp_path, [*lines[:3], wrong, *lines[4:]], "--json").stdout)
    assert (report["problem"]["kind"], report["problem"]["line"]) == ("different", 4)
    assert (report["problem"]["recorded"] + "\n", report["problem"]["replayed"] + "\n") == (wrong, lines[3])


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["sim", "replay", str(tmp_path / "nothing")])
    assert done.exit_code == 2
