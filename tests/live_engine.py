"""The real engine on a tiny random model, scraped by a real Prometheus, each a process on loopback."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_port

CACHE = Path(os.environ.get("HEADRACE_CACHE", "~/.cache/headrace")).expanduser()
SLO = {"ttft_seconds": 5.0, "itl_seconds": 2.0, "itl_percentile": 99.0, "tpot_seconds": None, "e2e_seconds": None}


@dataclass(frozen=True)
class Engine:
    """Addresses of one engine."""

    url: str
    admin_url: str
    process: subprocess.Popen


def wait_for(url: str, process: subprocess.Popen, log: Path, *, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, f"it ended with {process.returncode}:\n{log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {seconds:g} s:\n{log.read_text()[-3000:]}")


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        **shape, vocab_size=257, intermediate_size=64, head_dim=8, max_position_embeddings=512
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "<eos>"})
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def engine(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    config = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "prefill_chunk_size": 256, "kv_cache_bytes": 1 << 22}
    file, log = folder / "engine.json", folder / "log"
    file.write_text(json.dumps({"revision": "as-found", "config": config, "slo": SLO}))
    port, admin = free_port(), free_port()
    command = [sys.executable, "-m", "headrace_engine", "serve", str(model_folder), "--config", str(file)]
    command += ["--port", str(port), "--admin-port", str(admin), "--threads", "1"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/health/ready", process, log)
        yield Engine(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", process)
    finally:
        stop(process)


@pytest.fixture(scope="session")
def prometheus_url(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = next(iter(sorted(CACHE.glob("bin/prometheus-*/prometheus"))), None)
    if binary is None:
        pytest.skip(f"no Prometheus in {CACHE}/bin; headrace local binaries builds it")
    folder = tmp_path_factory.mktemp("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "engine", "static_configs": [{"targets": [engine.url.removeprefix("http://")]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port, log = free_port(), folder / "log"
    command = [
        str(binary), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/-/ready", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)
