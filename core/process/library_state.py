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
    hooks
    for name, hooks in vars(_modules).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
]


@contextmanager
def kept() -> Iterator[None]:
    """Restore settings, hooks on all modules and the state of generators afterwards.

    Whatever was replaced inside a library stays, and so do the working directory and the
    environment.
    """
    settings = [(get, put, get()) for get, put in _SETTINGS]
    hooks_before = [(hooks, set(hooks)) for hooks in _HOOKS]
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for get, put, was in settings:
                if not _EQUAL.get(get, _equal)(get(), was):
                    put(was)
            for hooks, before in hooks_before:
                for new in hooks.keys() - before:
                    del hooks[new]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _attribute(of: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(of, name), lambda value: setattr(of, name, value)


def _device() -> torch.device | None:
    """Return None for the default: setting the CPU would put a mode around every call."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _cuda_generators() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


# (getter, setter)
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
_EQUAL: dict[Callable[[], Any], Callable[[Any, Any], bool]] = {random.getstate: eq}
