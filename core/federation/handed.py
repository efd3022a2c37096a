"""What a phase is handed and must leave as it is: the engine's own tensors, watched while somebody's code runs.

torch counts every write to a tensor, through whichever view; that costs nothing to compare. It does not see what is written
through ``.data`` or numpy: for that a sum and a sample of the elements are compared, outside the steps of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from fedbench.core.contract.attack import Knowledge
from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.samples import MemberData

# tensors that a plugin may write to: the parameters it trains, and copies made for the adversary
OWN = {(MemberContext, "params"), (Knowledge, "start"), (Knowledge, "own"), (Knowledge, "honest")}
# where torch keeps the hooks of a module, of a tensor
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
_SAMPLE = 1024  # elements looked at one by one, spread over the tensor


# what the other clients' training, in the same process, would meet
SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype, "grad mode": torch.is_grad_enabled, "number of threads": torch.get_num_threads,
    "deterministic mode": torch.get_deterministic_debug_mode, "autocast": lambda: torch.is_autocast_enabled("cpu"),
}  # fmt: skip


class Watch:
    """Over what ``context`` hands out, and what else is handed out under a name (``also``). ``closely``: also for writes past
    torch's counters, and for the member's module, which all clients train in."""

    def __init__(self, context: Any, also: Mapping[str, torch.Tensor] = MappingProxyType({}), closely: bool = True) -> None:
        self._tensors = [*_handed(context), *also.items()]
        self._versions = [t._version for _, t in self._tensors]
        self._prints = [_known(t) for _, t in self._tensors] if closely else []
        self._module = context.model if closely and isinstance(context, MemberContext | Knowledge) else None
        self._structure = _structure(self._module) if closely else []
        self._settings = [get() for get in SETTINGS.values()]

    def changed(self) -> list[str]:
        """Names of what is not as it was."""
        found = [n for (n, t), version in zip(self._tensors, self._versions, strict=True) if t._version != version]
        if self._prints:
            found += [n for (n, t), was in zip(self._tensors, self._prints, strict=True) if n not in found and _print(t) != was]
        if self._module is not None and _structure(self._module) != self._structure:
            found.append("its model: modules, tensors, hooks, requires_grad or settings (load parameters into it instead)")
        return found

    def settings_changed(self) -> list[str]:
        """Names of torch's global settings that are not as they were."""
        return [name for (name, get), was in zip(SETTINGS.items(), self._settings, strict=True) if get() != was]


def _handed(context: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of a context, and of the data in it, but those that are the plugin's own: from its fields, so that a field
    that is added is watched."""
    found: list[tuple[str, torch.Tensor]] = []
    for field, name in _names(type(context)):  # type: ignore[arg-type]
        value = getattr(context, field)
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, MemberData):
            parts = [(f"{name}.{part}", getattr(value, part)) for part in _DATA]
            found += [(part, t) for part, t in parts if isinstance(t, torch.Tensor)]
    return found


_DATA = tuple(field.name for field in fields(MemberData))


@cache
def _names(kind: type) -> list[tuple[str, str]]:
    """(field, what messages call it) of a kind of context, but for the plugin's own: asked for in every step of a batch."""
    lead = "knowledge" if issubclass(kind, Knowledge) else "ctx"
    return [(field.name, f"{lead}.{field.name}") for field in fields(kind) if (kind, field.name) not in OWN]


_memo: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> its print


def _known(t: torch.Tensor) -> tuple[Any, ...]:
    """The print, made when it is first handed out: a client's data are in every phase of every round. The engine writes to none
    of it, so what was kept and is written to later, in another client's phase, is found when it is handed out again."""
    if t not in _memo:
        _memo[t] = _print(t)
    known: tuple[Any, ...] = _memo[t]
    return known


def _print(t: torch.Tensor) -> tuple[Any, ...]:
    """What a write changes: place, shape, a sum, and the bytes of a sample."""
    flat = t.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu().numpy().tobytes()
    return t.data_ptr(), t.shape, t.dtype, repr(flat.sum().item()), sample


def _structure(module: nn.Module | None) -> list[Any]:
    """Which modules and tensors a module holds, which of them are trained, how many hooks it has, and what torch's own layers
    are told (momentum, the share that is dropped): a layer of somebody's may count on itself."""
    if module is None:
        return []
    tensors = [(t.data_ptr(), t.requires_grad, _hooks(t)) for t in (*module.parameters(), *module.buffers())]
    modules = list(module.modules())
    hooks = [_hooks(m) for m in modules]
    told = [_told(m) for m in modules if type(m).__module__.startswith("torch.nn.")]
    return [tensors, modules, hooks, told]


def _hooks(of: Any) -> list[int]:
    """How many of each kind; a method put in the place of a module's own is one, too."""
    kept = [getattr(of, name, None) for name in _HOOKS]
    return [len(there or ()) for there in kept] + [callable(vars(of).get("forward"))]


def _told(layer: nn.Module) -> list[tuple[str, Any]]:
    plain = int, float, str, type(None)
    return [(name, value) for name, value in vars(layer).items() if name != "training" and isinstance(value, plain)]
