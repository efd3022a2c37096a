"""Whether a recorded step may stand for the step itself: tried from one state, before any number depends on it."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.per_sample import random_state, set_random_state
from fedbench.core.numerics.replay import Recorder, Step

_WARM_UPS = 3  # as torch asks for: libraries choose their kernels and allocate


class NotCapturable(RuntimeError):
    """A step does something that a recording of it would not."""


def on_trial(flat: FlatModel, at: torch.Tensor, step: Step, checked: Step, recorder: Recorder) -> Step:
    """A recording of ``step``, which goes from the parameters and buffers of ``flat`` and the index ``at`` to its gradient.

    ``checked``: the same step with a defense's answers checked. The state is put back as it was, random generators included.
    Raises ``NotCapturable`` where a replay gives other bits than the step, or where the step leaves something on the host; what
    the step raises, and what keeps it from being recorded, passes.
    """
    state = _State(flat, at)
    try:
        checked()
        for _ in range(_WARM_UPS):
            state.restore()
            recorder.warm_up(step)
        state.restore()
        step()
        wanted = state.results()
        if state.host() != state.host_before:
            raise NotCapturable("the model or the phase draws from, or counts in, something that a replay does not reach")
        state.restore()
        replay = recorder.record(step)
        state.restore()
        replay()
        _require_same(wanted, state.results())
    finally:
        state.restore()
    return replay


class _State:
    """All that a step reads and changes."""

    def __init__(self, flat: FlatModel, at: torch.Tensor) -> None:
        self._flat = flat
        self._tensors = [at, *flat.module.buffers()]
        self._kept = [t.clone() for t in self._tensors]
        self._device = flat.params.device
        self._draws = random_state(self._device)
        self._random = random.getstate(), np.random.get_state()
        self._modules = list(flat.module.modules())
        self._told = [_told(m) for m in self._modules]
        self.host_before = self.host()

    def restore(self) -> None:
        """As it was found."""
        for t, was in zip(self._tensors, self._kept, strict=True):
            t.copy_(was)
        set_random_state(self._draws)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        for module, told in zip(self._modules, self._told, strict=True):
            vars(module).update(told)

    def results(self) -> dict[str, torch.Tensor]:
        """What the last step made."""
        _, cpu, cuda = random_state(self._device)
        made = {"gradient": self._flat.grad, "random draws": cpu} | {f"buffer {i}": t for i, t in enumerate(self._tensors)}
        made |= {} if cuda is None else {"random draws on the device": cuda}
        return {name: t.clone() for name, t in made.items()}

    def host(self) -> list[Any]:
        """What a replay cannot change: Python's and numpy's generators, and what modules keep beside tensors."""
        _, keys, *rest = np.random.get_state(legacy=True)
        return [random.getstate(), keys.tobytes(), rest, [_told(m) for m in self._modules]]  # type: ignore[union-attr]


def _told(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, int | float | str | tuple | type(None))}


def _bits(t: torch.Tensor) -> torch.Tensor:
    """[n] bytes: NaN is equal to itself."""
    return t.reshape(-1).view(torch.uint8)


def _require_same(wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    for name, a in wanted.items():
        b = found[name]
        if not torch.equal(_bits(a), _bits(b)):
            apart = float((a - b).abs().max() / a.abs().max()) if name == "gradient" else math.nan
            far = f", by up to {apart:.1e} of its largest element" if math.isfinite(apart) else ""
            raise NotCapturable(f"a replay gives another {name} than the step itself{far}")
