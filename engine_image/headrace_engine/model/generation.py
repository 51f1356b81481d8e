"""A model's generation_config.json: the ids that end an answer, and the sampling that its makers suggest.

Without the second, answers would be more random than in vLLM or transformers: most instruction models suggest a
temperature below 1.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from transformers import GenerationConfig

from headrace_engine.errors import ModelError
from headrace_engine.model.checks import reason_of
from headrace_engine.model.weights import WeightSource

FILE = "generation_config.json"
ADVICE = "Copy the file again, or start with --generation-config none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedSampling:
    """Default sampling of calls. The defaults here are OpenAI's: sample from all tokens, unchanged."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def differences(self) -> dict[str, float]:
        """Values that are not OpenAI's defaults, by name."""
        return {name: value for name, value in asdict(self).items() if value != getattr(OPENAIS, name)}


OPENAIS = SuggestedSampling()
#: Limits for calls and so for the file, under pydantic's names.
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"ge": 0, "le": 2},
    "top_p": {"gt": 0, "le": 1},
    "top_k": {"ge": -1, "lt": 2**31},
    "min_p": {"ge": 0, "le": 1},
    "repetition_penalty": {"ge": 0.01, "le": 100},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFile:
    """The file as read. `where` names it in errors."""

    where: str = FILE
    eos_token_ids: frozenset[int] = frozenset()
    values: Mapping[str, Any] = field(default_factory=dict)

    def sampling(self) -> SuggestedSampling:
        """The suggested sampling. Raises `ModelError` for a value that would be refused in a call."""
        given = {item.name: self.values.get(item.name) for item in fields(SuggestedSampling)}
        checked = {name: self._checked(name, value) for name, value in given.items() if value is not None}
        if "top_k" in checked:
            checked["top_k"] = max(0, checked["top_k"])
        return SuggestedSampling(**checked)

    def _checked(self, name: str, value: Any) -> Any:
        is_number = isinstance(value, int if name == "top_k" else int | float) and not isinstance(value, bool)
        if not is_number or not all(getattr(operator, how)(value, limit) for how, limit in LIMITS[name].items()):
            raise ModelError(f"{self.where}: {name} is {value!r}, which must be {_allowed(name)}. {ADVICE}")
        return value


def _allowed(name: str) -> str:
    limits = LIMITS[name]
    kind = "a whole number" if name == "top_k" else "a number"
    low = f"from {limits['ge']}" if "ge" in limits else f"above {limits['gt']},"
    return f"{kind} {low} to {limits['le'] if 'le' in limits else limits['lt'] - 1}"


NOTHING_SAID = GenerationFile()


def read_generation(source: WeightSource) -> GenerationFile:
    """The file of `source`, or `NOTHING_SAID` if there is none. Raises `ModelError` if it is damaged."""
    if source.gguf is not None:
        return NOTHING_SAID  # a generation_config.json in its folder would be another model's
    where = f"{source.where}/{FILE}"
    try:
        read = GenerationConfig.from_pretrained(source.where, **source.of_revision)
        given, ends = read.to_diff_dict(), ids(read.eos_token_id)
        if not all(isinstance(end, int) for end in ends):
            raise TypeError(f"eos_token_id is {read.eos_token_id!r}, which are not token ids")
    except OSError as error:
        if source.has_file(FILE):
            raise _damaged(where, error) from error
        return NOTHING_SAID
    except Exception as error:  # transformers may raise anything for invalid values
        raise _damaged(where, error) from error
    return GenerationFile(where=where, eos_token_ids=ends, values=given)


def ids(value: int | list[int] | None) -> frozenset[int]:
    """Token ids as configs write them: none, one, or a list."""
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset({value})


def _damaged(where: str, error: Exception) -> ModelError:
    return ModelError(f"{where} cannot be read: {reason_of(error)}. Copy it again, or remove it")
