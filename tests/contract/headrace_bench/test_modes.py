"""`headrace bench modes` in its smallest form: real engines on a tiny model, started and ended by the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CALIBRATION = {
    "model": "tiny", "device": "cpu", "dtype": "float32",
    "decode_step_seconds": {"1": 0.004, "8": 0.006, "16": 0.008},
    "prefill_step_seconds": {"32": 0.008, "64": 0.012, "128": 0.022, "256": 0.044},
}  # fmt: skip
MODES = ("static", "continuous", "chunked")


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command left what it found."""
    out = tmp_path_factory.mktemp("modes")
    (out / "steps.json").write_text(json.dumps(CALIBRATION))
    command = [
        sys.executable, "-m", "headrace_cli", "bench", "modes", str(model_folder), "--quick", "--out", str(out),
        "--calibration", str(out / "steps.json"), "--max-num-seqs", "4", "--chunk", "16", "--prompt-tokens", "8",
        "--output-tokens", "lognormal:6:0.8:16", "--threads", "1", "--low-rate", "4", "--high-rate", "8",
    ]  # fmt: skip
    environment = os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1", "HEADRACE_AUTO_DTYPE": "float32"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    (out / "screen").write_text(done.stderr)
    return out


@pytest.mark.timeout(420)
def test_every_mode_is_loaded_at_every_level_and_answers(folder: Path) -> None:
    result = json.loads((folder / "modes.json").read_text())
    cells = {(cell["level"], cell["mode"]): cell for cell in result["cells"]}
    assert set(cells) == {(level, mode) for level in ("low", "high", "full") for mode in MODES}
    for cell in cells.values():
        assert cell["answered"] > 0
        assert cell["errors"] == {}
        assert 0 < cell["busy"][0] <= 1
        assert cell["tokens_per_second"][0] > 0
    for level in ("low", "high"):
        assert len({cells[level, mode]["planned"] for mode in MODES}) == 1, "the same plan for each"


@pytest.mark.timeout(420)
def test_the_modes_say_the_same(folder: Path) -> None:
    # fp32, greedy, one thread: whatever company a request has in its steps, its answer is its own.
    answers = json.loads((folder / "modes.json").read_text())["answers"]
    assert {(item["first"], item["second"]) for item in answers} == {
        ("static", "continuous"), ("static", "chunked"), ("continuous", "chunked"),
    }  # fmt: skip
    for item in answers:
        assert item["compared"] >= 16
        assert item["equal"] == item["compared"], item["difference"]


@pytest.mark.timeout(420)
def test_claims_and_prices_have_figures_whatever_they_say(folder: Path) -> None:
    result = json.loads((folder / "modes.json").read_text())
    names = {claim["name"] for claim in result["claims"]}
    assert len(names) == 3
    assert all(claim["verdict"] in ("held", "not held", "cannot tell") for claim in result["claims"])
    assert all(claim["figures"] for claim in result["claims"])
    assert {price["level"] for price in result["prices"]} == {"low", "high"}
    screen = (folder / "screen").read_text()
    assert all(name in " ".join(screen.split()) for name in names)
    assert (folder / "modes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(420)
def test_no_engine_is_left_and_each_has_its_log(folder: Path) -> None:
    logs = sorted(path.name for path in (folder / "logs").iterdir())
    assert logs == ["1-static.log", "2-continuous.log", "3-chunked.log", "first-chunked.log"]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    model = json.loads((folder / "modes.json").read_text())["model"].encode()
    # Other tests serve the same model, under its own name.
    assert not [command for command in commands if model in command and b"--served-model-name\0bench\0" in command]
