"""Detect writes of a plugin to what it was handed, and changes of what all clients share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from fedbench.core.contract.attack import Knowledge
from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.samples import MemberData

SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "grad mode": torch.is_grad_enabled,
    "number of threads": torch.get_num_threads,
    "deterministic mode": torch.get_deterministic_debug_mode,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
}
"""global settings of torch, which all clients of a process share"""

# tensors that a plugin may write to: the parameters it trains, and copies made for the adversary
_WRITABLE = {
    (MemberContext, "params"),
    (Knowledge, "start"),
    (Knowledge, "own"),
    (Knowledge, "honest"),
}
# the attributes of modules and tensors in which torch keeps hooks
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)
_MODULE = (
    "its model: modules, tensors, hooks, requires_grad or settings (load parameters into it "
    "instead)"
)


class Watch:
    """State that a plugin may not change, as it is when a phase begins.

    Always watched, by comparing counters: torch's settings, the global model that a client
    received, and ``handed``. ``closely``: every tensor of the context by its content, and the
    module that the clients train in.
    """

    def __init__(
        self,
        context: Any,
        handed: dict[str, torch.Tensor],
        closely: bool,
    ) -> None:
        self._closely = closely
        self._module: nn.Module | None = None
        lead = {}
        if closely:
            lead = dict(_tensors_of(context))
            if isinstance(context, MemberContext | Knowledge):
                self._module = context.model
        elif isinstance(context, MemberContext):
            lead["ctx.start"] = context.start
        self._tensors = lead | handed
        self._before = self._state()

    def change(self) -> str:
        """Return what has changed, with the remedy; an empty text if nothing has."""
        now = self._state()
        if now == self._before:
            return ""
        changed = [name for name, value in now.items() if value != self._before[name]]
        values = [name for name in changed if name not in SETTINGS]
        if values:
            return f"changed {', '.join(values)}; it is read-only: work on a copy, e.g. .clone()"
        return (
            f"changed torch's {', '.join(changed)}; all clients train in the same process: restore "
            "the setting, e.g. by a `with` block"
        )

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: get() for name, get in SETTINGS.items()}
        for name, t in self._tensors.items():
            state[name] = _fingerprint(t) if self._closely else t._version
        if self._module is not None:
            state[_MODULE] = structure_of(self._module)
        return state


def _tensors_of(context: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every tensor of a context and of its data that is read-only."""
    lead = "knowledge" if isinstance(context, Knowledge) else "ctx"
    for field in fields(context):
        value = getattr(context, field.name)
        if isinstance(value, MemberData):
            for part in fields(value):
                tensor = getattr(value, part.name)
                if isinstance(tensor, torch.Tensor):
                    yield f"{lead}.{field.name}.{part.name}", tensor
        elif isinstance(value, torch.Tensor) and (type(context), field.name) not in _WRITABLE:
            yield f"{lead}.{field.name}", value


def _fingerprint(t: torch.Tensor) -> list[Any]:
    return [t._version, t.data_ptr(), t.shape, t.dtype, repr(t.detach().sum().item())]


def structure_of(module: nn.Module) -> list[Any]:
    """Return the parts of a module, its tensors, the hooks on them, and the settings of torch's
    own layers (momentum, dropout rate); a plugin's own layers may keep counters.
    """
    structure = []
    for tensor in (*module.parameters(), *module.buffers()):
        structure += [tensor.data_ptr(), tensor.requires_grad, _hooks(tensor)]
    for layer in module.modules():
        structure += [layer, _hooks(layer), callable(vars(layer).get("forward"))]
        if type(layer).__module__.startswith("torch.nn."):
            structure.append(_settings_of(layer))
    return structure


def _hooks(owner: Any) -> list[int]:
    return [len(getattr(owner, name, None) or ()) for name in _HOOKS]


def _settings_of(layer: nn.Module) -> dict[str, Any]:
    plain = int | float | str | None
    values = vars(layer).items()
    return {n: value for n, value in values if isinstance(value, plain) and n != "training"}
