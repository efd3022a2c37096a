"""A print of a value, bit by bit: two values with the same print are the same to whoever reads them."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_DEEP = 12  # containers within containers; what lies deeper is told by its type alone


def print_of(value: Any) -> str:
    """Hex digest of a value: tensors, arrays, numbers, text, modules, generators, and what holds them."""
    h = hashlib.sha256()
    _feed(h, value, 0, set())
    return h.hexdigest()


def _feed(h: Any, value: Any, depth: int, above: set[int]) -> None:
    h.update(f"<{type(value).__name__}:".encode())
    if isinstance(value, torch.Tensor):
        _array(h, value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() if value.numel() else np.zeros(0))
        h.update(f"{value.dtype}{tuple(value.shape)}".encode())
    elif isinstance(value, np.ndarray):
        h.update(f"{value.dtype}{value.shape}".encode())
        _array(h, value) if not value.dtype.hasobject else _feed(h, value.tolist(), depth + 1, above)
    elif isinstance(value, str | bytes | int | float | complex | bool | type | None):
        h.update(repr(value).encode("utf-8", "backslashreplace"))
    elif depth < _DEEP and id(value) not in above:
        for part in _parts(value):
            _feed(h, part, depth + 1, above | {id(value)})
    h.update(b">")


def _array(h: Any, a: np.ndarray) -> None:
    h.update(np.ascontiguousarray(a).tobytes())


def _parts(value: Any) -> list[Any]:
    """What a thing is made of, in an order of its own."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, nn.Module):
        return [value.training, dict(value.state_dict()), [p.requires_grad for p in value.parameters()]]
    if (state := generator_state(value)) is not None:
        return [state]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name) for f in dataclasses.fields(value)]
    return [vars(value)] if hasattr(value, "__dict__") and not callable(value) else []


def generator_state(value: Any) -> str | None:
    """Where a random generator stands; None of anything else."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    return repr(value.get_state().tolist()) if isinstance(value, torch.Generator) else None


def storages(value: Any, depth: int = 0) -> set[int]:
    """Where the memory of all tensors and arrays in a value begins."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr()} if value.numel() else set()
    if isinstance(value, np.ndarray):
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        return {base.ctypes.data} if base.size else set()
    if depth >= _DEEP or isinstance(value, str | bytes | int | float | type | None) or callable(value):
        return set()
    return set[int]().union(*(storages(part, depth + 1) for part in _parts(value)))
