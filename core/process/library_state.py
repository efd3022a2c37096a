"""Process-wide state of libraries that numbers depend on: saved before plugin code and restored
after it.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import eq
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as _modules

_SMALL = sys.float_info.min  # half of it is 0 where the processor takes numbers as small for zero
_HOOKS = [
    there
    for name, there in vars(_modules).items()
    if name.startswith("_global_") and isinstance(there, dict)
]


@contextmanager
def kept() -> Iterator[None]:
    """Settings, hooks on all modules and the state of generators are afterwards what they were
    before.

    Not what was replaced inside a library, nor the working directory and the environment.
    """
    settings = [(get, put, get()) for get, put in _SETTINGS]
    hooks = [(there, set(there)) for there in _HOOKS]
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for get, put, was in settings:
                if not _ALIKE.get(get, _same)(get(), was):
                    put(was)
            for there, before in hooks:
                for new in there.keys() - before:
                    del there[new]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def _attribute(of: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(of, name), lambda value: setattr(of, name, value)


def _device() -> torch.device | None:
    """None for the default: setting the CPU would put a mode around every call."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _cuda_generators() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


# (how it is asked for, how it is put back)
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (_device, torch.set_default_device),  # first: tensors are made below
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    (lambda: _SMALL / 2 == 0, torch.set_flush_denormal),
    _attribute(torch.backends.mkldnn, "enabled"),
    _attribute(torch.backends.cudnn, "enabled"),
    _attribute(torch.backends.cudnn, "benchmark"),
    _attribute(torch.backends.cudnn, "allow_tf32"),
    _attribute(torch.backends.cuda.matmul, "allow_tf32"),
    (np.geterr, lambda was: np.seterr(**was)),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (torch.get_rng_state, torch.set_rng_state),
    (_cuda_generators, torch.cuda.set_rng_state_all),
)
# Python's own generator states 626 plain numbers, which tuples compare at once.
_ALIKE: dict[Callable[[], Any], Callable[[Any, Any], bool]] = {random.getstate: eq}
