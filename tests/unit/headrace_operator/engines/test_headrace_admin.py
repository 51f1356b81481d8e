"""The admin port's answer in the form that all kinds of engine share. Contract tests check the calls themselves."""

from headrace_client.engine import EngineState
from headrace_operator.engines.headrace_admin import running_engine


def test_only_capped_knobs_have_ceilings() -> None:
    state = EngineState(
        generation=3,
        revision="r",
        config={"decode_ratio": 0.5},
        knobs=({"name": "max_num_seqs", "ceiling": 8}, {"name": "decode_ratio", "ceiling": None}, {"name": "seed"}),
        device="cuda",
        dtype="bfloat16",
        pretend_gpu=True,
        started_at=12.5,
        slo={"ttft_seconds": 1.0},
    )
    engine = running_engine(state)
    assert engine.ceilings == {"max_num_seqs": 8}
    assert (engine.generation, engine.revision, engine.config) == (3, "r", {"decode_ratio": 0.5})
    assert (engine.device, engine.pretend_gpu, engine.started_at) == ("cuda", True, 12.5)
    assert engine.slo == {"ttft_seconds": 1.0}
