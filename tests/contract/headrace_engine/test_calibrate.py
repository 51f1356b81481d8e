"""The output of `headrace bench engine` can be read as a calibration."""

import json
from pathlib import Path

import pytest
import torch

from headrace_core.knobs.resolve import resolve
from headrace_core.sim.calibration import Calibration
from headrace_engine import calibrate


def test_the_engines_step_times_are_a_calibration(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "SECONDS_PER_CASE", 0.0)
    seen: list[calibrate.Case] = []
    result = calibrate.calibrate(
        str(model_folder), resolve({"dtype": "float32"}), device=torch.device("cpu"),
        report=lambda case, seconds: seen.append(case),
    )  # fmt: skip
    read = Calibration.from_json(json.loads(json.dumps(result)))
    assert tuple(read.decode) == calibrate.DECODES
    assert tuple(read.prefill) == calibrate.PREFILLS
    assert len(seen) == len(calibrate.DECODES) + len(calibrate.PREFILLS)
    assert {"model", "device", "dtype", "threads", "cpu_features"} <= read.facts.keys()
