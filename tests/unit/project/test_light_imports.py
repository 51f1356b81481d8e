"""The operator, the tuner, the clients and the command line start without torch: their images don't have it."""

import subprocess
import sys

import pytest

# In alphabetical order; the cluster has libraries of its own.
LIGHT = (
    "headrace_api.v1alpha1",
    "headrace_cli.explain_request",
    "headrace_cli.main",
    "headrace_client.kube",
    "headrace_core.scheduler.scheduler",
    pytest.param("headrace_local.commands", marks=pytest.mark.local),
    "headrace_operator.app",
    "headrace_bench.serve.command",
    "headrace_tuner.cli",
    "headrace_bench.modes.command",
    "headrace_bench.quality.command",
    "headrace_tuner.study.runner",
)
HEAVY = ("torch", "transformers", "triton", "safetensors", "headrace_engine")


@pytest.mark.parametrize("module", LIGHT)
def test_module_brings_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
