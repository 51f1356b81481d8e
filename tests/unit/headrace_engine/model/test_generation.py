"""generation_config.json: end tokens, suggested sampling, and errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_engine.errors import ModelError
from headrace_engine.model.generation import OPENAIS, SuggestedSampling, read_generation
from headrace_engine.model.loading import load_model
from headrace_engine.model.weights import find_source


@pytest.fixture(scope="module")
def saved(tiny: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generation") / "model"
    tiny("llama").module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def say(folder: Path, **values: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


def sampling(folder: Path) -> SuggestedSampling:
    return read_generation(find_source(str(folder))).sampling()


def test_suggested_sampling_is_read_from_the_file(folder: Path) -> None:
    say(folder, do_sample=True, temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, max_length=9)
    found = sampling(folder)
    assert found == SuggestedSampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)
    assert found.differences == {
        "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
    }  # fmt: skip


def test_missing_values_are_openais_defaults(folder: Path) -> None:
    say(folder, temperature=1.0, top_k=-1)
    assert sampling(folder) == OPENAIS
    assert OPENAIS.differences == {}
    say(folder, eos_token_id=[3, 4])
    generation = read_generation(find_source(str(folder)))
    assert (generation.sampling(), generation.eos_token_ids) == (OPENAIS, {3, 4})
    (folder / "generation_config.json").unlink()
    assert sampling(folder) == OPENAIS


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": 5}, "temperature is 5, which must be a number from 0 to 2"),
        ({"temperature": "0.6"}, "temperature is '0.6', which must be a number"),
        ({"top_p": 0}, "top_p is 0, which must be a number above 0, to 1"),
        ({"top_k": 2.5}, "top_k is 2.5, which must be a whole number"),
        ({"top_k": True}, "top_k is True"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x', which are not token ids"),
        ({"eos_token_id": [1, None]}, "not token ids"),
    ],
)
def test_a_value_that_no_call_could_ask_for_is_named(folder: Path, values: dict[str, Any], words: str) -> None:
    say(folder, **values)
    with pytest.raises(ModelError) as refused:
        sampling(folder)
    assert words in str(refused.value)
    assert str(folder / "generation_config.json") in str(refused.value)


def test_a_model_loads_though_its_sampling_is_wrong(folder: Path) -> None:
    say(folder, temperature=5, eos_token_id=2)
    loaded = load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)
    assert 2 in loaded.eos_token_ids
    with pytest.raises(ModelError, match="--generation-config none"):
        loaded.generation.sampling()


def test_a_revision_of_a_hub_model_is_the_one_that_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    for branch, commit, temperature in (("main", "a" * 40, 0.3), ("v2", "b" * 40, 0.7)):
        say(folder, temperature=temperature)
        shutil.copytree(folder, cache / "models--org--name" / "snapshots" / commit)
        ref = cache / "models--org--name" / "refs" / branch
        ref.parent.mkdir(exist_ok=True)
        ref.write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def temperature(revision: str | None) -> float:
        source = find_source("hf://org/name", revision=revision)
        loaded = load_model(source, device=torch.device("cpu"), dtype=torch.float32)
        return loaded.generation.sampling().temperature

    assert [temperature(name) for name in (None, "main", "v2", "b" * 40)] == [0.3, 0.3, 0.7, 0.7]
    with pytest.raises(ModelError, match="org/name: cannot load the config"):
        temperature("v3")


def test_a_folder_has_no_revisions(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"--revision v2: .*omit it"):
        find_source(str(folder), revision="v2")
