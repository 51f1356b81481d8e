"""The choice of a backend: by name, or the first that lacks nothing. Errors list what is missing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_by_loops import LoopBackend

from headrace_core.knobs.resolve import resolve
from headrace_core.knobs.table import KNOB_BY_NAME
from headrace_engine.attention import registry
from headrace_engine.attention.features import AttentionNeeds, Feature
from headrace_engine.attention.kv_cache import LayerShape
from headrace_engine.attention.registry import BACKENDS, needs_of, pick
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.engine import assemble, pick_attention
from headrace_engine.errors import SettingsError
from headrace_engine.loop.probe import probe

EVERY = frozenset(Feature)
CPU = torch.device("cpu")
GQA = LayerShape(kv_heads=2, key_dim=24, value_dim=24, features=frozenset({Feature.GROUPED_QUERIES}))
WINDOWED = LayerShape(kv_heads=2, key_dim=24, value_dim=24, features=frozenset({Feature.WINDOW, Feature.SINKS}))


def needs(*layers: LayerShape, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None) -> Any:
    return needs_of(dict(enumerate(layers)), device=CPU, dtype=dtype, kv_dtype=kv_dtype or dtype, block_size=16)


def test_the_knob_offers_auto_and_every_backend() -> None:
    assert KNOB_BY_NAME["attention_backend"].choices == ("auto", *(backend.name for backend in BACKENDS))


def test_needs_are_those_of_all_layers_and_of_the_pool() -> None:
    latent = LayerShape(kv_heads=4, key_dim=16, value_dim=12)
    assert needs(GQA, WINDOWED, latent, kv_dtype=torch.float16) == AttentionNeeds(
        device="cpu", dtype=torch.float32, kv_dtype=torch.float16, block_size=16, head_sizes=frozenset({24, 16, 12}),
        features=frozenset(
            {Feature.GROUPED_QUERIES, Feature.WINDOW, Feature.SINKS, Feature.VALUE_SIZE, Feature.KV_DTYPE}
        ),
    )  # fmt: skip
    assert needs(GQA).features == {Feature.GROUPED_QUERIES}


@pytest.mark.parametrize(
    ("less", "missing"),
    [
        ({"features": EVERY - {Feature.SINKS}}, "attention sinks"),
        ({"features": EVERY - {Feature.SINKS, Feature.WINDOW}}, "sliding windows, attention sinks"),
        ({"devices": {"cuda"}}, "device cpu"),
        ({"dtypes": {torch.bfloat16}}, "dtype float32"),
        ({"head_sizes": range(16, 257, 16)}, "head size 24"),
        ({"block_sizes": range(256, 4097, 256)}, "block size 16"),
        ({"head_sizes": {64}, "features": EVERY - {Feature.WINDOW}}, "head size 24, sliding windows"),
    ],
)
def test_a_named_backend_is_refused_with_what_it_lacks_and_auto_skips_it(
    less: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, sdpa = LoopBackend("quick", **less), SdpaBackend()
    monkeypatch.setattr(registry, "BACKENDS", (quick, sdpa))
    wanted = needs(GQA, WINDOWED)
    with pytest.raises(SettingsError) as caught:
        pick("quick", wanted)
    assert str(caught.value) == (
        f"--attention-backend quick: this backend lacks {missing}, which this model as configured needs; "
        "use --attention-backend auto or sdpa"
    )
    assert pick("auto", wanted) is sdpa
    assert pick("sdpa", wanted) is sdpa


def test_auto_takes_the_first_that_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = LoopBackend("quick", features=EVERY - {Feature.SINKS})
    monkeypatch.setattr(registry, "BACKENDS", (quick, SdpaBackend()))
    assert pick("auto", needs(GQA)) is quick


def test_if_no_backend_can_run_the_model_the_error_lists_what_each_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = LoopBackend("one", devices={"cuda"}), LoopBackend("two", features=EVERY - {Feature.WINDOW})
    monkeypatch.setattr(registry, "BACKENDS", backends)
    with pytest.raises(SettingsError, match="one lacks device cpu; two lacks sliding windows"):
        pick("auto", needs(WINDOWED))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"--attention-backend fast: .*known are auto, sdpa"):
        pick("fast", needs(GQA))


def test_the_knob_decides_what_the_engine_runs(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = LoopBackend("quick", features=EVERY - {Feature.SINKS})
    monkeypatch.setattr(registry, "BACKENDS", (quick, SdpaBackend()))
    auto = resolve({"dtype": "float32", "kv_cache_bytes": 1 << 20})
    for model, knob, expected in (
        (tiny("llama"), "auto", "quick"), (tiny("llama"), "sdpa", "sdpa"), (tiny("gpt-oss-sinks"), "auto", "sdpa"),
    ):  # fmt: skip
        layers = probe(model, backend=knob)
        config = replace(auto, attention_backend=knob)
        assert pick_attention(model, layers, config).name == expected
        assert assemble(model, layers, config, served_name="tiny").runner.backend.name == expected
    with pytest.raises(SettingsError, match="quick: this backend lacks attention sinks"):
        probe(tiny("gpt-oss-sinks"), backend="quick")
