"""Flags, engine.json and the machine become one checked config."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from headrace_core.knobs.resolve import resolve
from headrace_core.knobs.table import KNOBS
from headrace_engine import device as devices
from headrace_engine.engine import size_pool
from headrace_engine.errors import SettingsError
from headrace_engine.loop.probe import probe
from headrace_engine.settings import EngineFile, admin_token, engine_config, is_loopback, origins_of, read_engine_file

EMPTY = EngineFile(config={}, ceilings={})


def test_the_scheduler_cap_is_active_below_the_boot_value() -> None:
    config = engine_config(EMPTY, {"max_num_seqs": 64, "max_num_batched_tokens": 512}, active_num_seqs=8, device="cpu")
    assert (config.max_num_seqs, config.ceilings["max_num_seqs"]) == (8, 64)
    with pytest.raises(SettingsError, match="--max-num-seqs: 65 exceeds"):
        engine_config(EMPTY, {"max_num_seqs": 64}, active_num_seqs=65, device="cpu")


def test_flags_win_over_the_file() -> None:
    file = EngineFile(config={"decode_ratio": 0.5, "seed": 4}, ceilings={})
    config = engine_config(file, {"decode_ratio": 0.25}, active_num_seqs=None, device="cpu")
    assert (config.decode_ratio, config.seed) == (0.25, 4)


def test_every_problem_is_named_by_its_flag() -> None:
    with pytest.raises(SettingsError, match=r"--decode-ratio: .*--block-size: "):
        engine_config(EMPTY, {"decode_ratio": 1.0, "block_size": 0}, active_num_seqs=None, device="cpu")


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "not an object"), ('{"wombat": 1}', "unknown wombat"),
     ('{"slo": {"x": 1}}', "unknown x"), ('{"slo": {"ttft_seconds": -1}}', "ttft_seconds"),
     ('{"ceilings": {"max_num_seqs": "many"}}', "many")],
)  # fmt: skip
def test_a_wrong_engine_json_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words) as refused:
        read_engine_file(path)
    assert str(path) in str(refused.value)


def test_a_missing_engine_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_engine_file(tmp_path / "none.json")


def test_the_token_comes_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ADMIN_TOKEN", "from-env")
    assert admin_token(None) == "from-env"
    path = tmp_path / "token"
    path.write_text("from-file\n")
    assert admin_token(path) == "from-file"
    path.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        admin_token(path)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.97.0.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.auto_dtype
def test_the_environment_says_what_dtype_auto_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setenv("HEADRACE_AUTO_DTYPE", "bfloat16")
    assert devices.pick_dtype("auto", cpu, ("avx2",)) is torch.bfloat16
    assert devices.pick_dtype("float32", cpu, ("avx512_bf16",)) is torch.float32
    monkeypatch.setenv("HEADRACE_AUTO_DTYPE", "int8")
    with pytest.raises(SettingsError, match="HEADRACE_AUTO_DTYPE int8: must be one of float32, bfloat16, float16"):
        devices.pick_dtype("auto", cpu, ())


@pytest.mark.auto_dtype
def test_dtype_auto_is_what_the_cpu_does_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_AUTO_DTYPE", raising=False)
    cpu = torch.device("cpu")
    assert devices.pick_dtype("auto", cpu, ("avx2", "fma")) is torch.float32
    assert devices.pick_dtype("auto", cpu, ("avx512_bf16",)) is torch.bfloat16
    assert devices.pick_dtype("float32", cpu, ("amx_bf16",)) is torch.float32
    with pytest.raises(SettingsError, match="--device tpu"):
        devices.pick_device("tpu")


def test_the_pool_is_sized_by_bytes_and_by_what_can_be_used(tiny: Any) -> None:
    model = tiny("llama")
    layers = probe(model)
    block = 64 * 2 * 2 * (8 + 8) * 4  # tokens, layers, KV heads, key and value, bytes
    five = {"kv_cache_bytes": 5 * block, "block_size": 64}
    pool, config = size_pool(model, layers, resolve(five))
    assert (pool.num_blocks, config.max_model_len, config.kv_cache_bytes) == (5, 256, 5 * block)
    pool, config = size_pool(model, layers, resolve({"max_num_seqs": 2}))
    assert (pool.num_blocks, config.max_model_len) == (2 * 512 // 16 + 1, 512)
    with pytest.raises(SettingsError, match=r"513 exceeds the model's own limit 512"):
        size_pool(model, layers, resolve({"max_model_len": 513}))
    with pytest.raises(SettingsError, match=rf"257 exceeds the 256 tokens .* to {6 * block}"):
        size_pool(model, layers, resolve({"max_model_len": 257} | five))


def test_help_names_every_knob() -> None:
    from headrace_engine.__main__ import app

    said = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{knob.name.replace('_', '-')}" in said for knob in KNOBS)
    assert "--no-enable-chunked-prefill" in said
    assert "--max-chunk-size" in said


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [
        (2, "max 100000", 1),
        (16, "max 100000", 15),
        (1, "max 100000", 1),
        (16, "400000 100000", 3),
        (16, "50000 100000", 1),
    ],
)
def test_one_core_is_left_to_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, quota: str, threads: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert devices.default_threads() == threads


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        (None, ()),
        ("*", ("*",)),
        ("https://a.example, http://b.example:8080", ("https://a.example", "http://b.example:8080")),
        ('["*"]', ("*",)),
    ],
)
def test_origins_are_a_list_with_commas_or_json(text: str | None, origins: tuple[str, ...]) -> None:
    assert origins_of(text) == origins


@pytest.mark.parametrize(
    "text", ["", "a.example", "https://a.example/path", "[", "[]", "[1]", "https://a, https://b c"]
)
def test_what_is_no_origin_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="--allowed-origins"):
        origins_of(text)
