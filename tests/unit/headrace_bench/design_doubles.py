"""Step times of a machine and a design for it."""

from headrace_bench.modes.design import (
    make_design,
)
from headrace_core.sim.calibration import Calibration
from headrace_core.workload.lengths import Length

# A step costs 50 ms and 2 ms a row.
STEPS = Calibration(
    decode={1: 0.052, 16: 0.082}, prefill={32: 0.114, 64: 0.178, 128: 0.306, 256: 0.562, 512: 1.074}, facts={}
)


def design(**more: object):
    base = {
        "chunk": 64, "max_num_seqs": 8, "budget": None, "short": Length.parse("16"), "long": None, "long_share": 0.05,
        "output": Length.parse("lognormal:20:1.2:120"), "max_model_len": 4096,
    }  # fmt: skip
    return make_design(**base | more)
