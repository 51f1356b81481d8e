"""The attention features that a model needs, and those that a backend declares."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch


class Feature(StrEnum):
    """Features that not every kernel supports. The value is the name in messages."""

    WINDOW = "sliding windows"
    SOFTCAP = "soft-capped scores"
    SINKS = "attention sinks"
    GROUPED_QUERIES = "grouped query heads"
    VALUE_SIZE = "values of another head size than keys"
    KV_DTYPE = "KV blocks of another dtype than the model's"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """The needs of a model as loaded and configured. `device` is torch's device type."""

    device: str
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    head_sizes: frozenset[int]
    features: frozenset[Feature]


class _Anything(Container[Any]):
    def __contains__(self, _: object) -> bool:
        return True


ANYTHING = _Anything()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAbilities:
    """What a backend supports. `devices` are torch's device types; `dtypes` apply to queries and KV blocks alike."""

    devices: Container[str]
    dtypes: Container[torch.dtype]
    head_sizes: Container[int]
    block_sizes: Container[int]
    features: frozenset[Feature]

    def lacks(self, needs: AttentionNeeds) -> tuple[str, ...]:
        """Names of everything in `needs` that is not supported; empty if the backend can run the model."""
        dtypes = sorted({str(dtype).removeprefix("torch.") for dtype in self._missing_dtypes(needs)})
        return (
            *([] if needs.device in self.devices else [f"device {needs.device}"]),
            *(f"dtype {name}" for name in dtypes),
            *(f"head size {size}" for size in sorted(needs.head_sizes) if size not in self.head_sizes),
            *([] if needs.block_size in self.block_sizes else [f"block size {needs.block_size}"]),
            *(feature.value for feature in Feature if feature in needs.features - self.features),
        )

    def _missing_dtypes(self, needs: AttentionNeeds) -> list[torch.dtype]:
        return [dtype for dtype in (needs.dtype, needs.kv_dtype) if dtype not in self.dtypes]
