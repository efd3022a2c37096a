"""Call a signal on copies of the engine's tensors and check what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.contract.components import Probe, Signal
from fedbench.core.contract.task import Task
from fedbench.core.federation.guard import PhaseError
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.wrappers import as_floats
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.process.library_state import kept
from fedbench.core.words import describe_error

# Logits beyond it can differ by more than float32 holds: a correct signal may overflow there.
_LARGEST_LOGIT = torch.finfo(torch.float32).max / 4

Answers = Callable[[Tensor], Tensor]  # logits [n, C] -> what is answered, [n, C]


class SignalError(RuntimeError):
    """A signal raised or returned a wrong value."""


class CopiedProbe(Probe):
    """A probe that copies each field on first access: most signals read two of the five."""

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        target: Tensor,
        buffers: Tensor | None,
        **copies: Callable[[], Any],
    ) -> None:
        fields = {"task": task, "target": target.clone(), "buffers": buffers}
        self.__dict__ |= {"_module": module, "_copies": copies} | fields

    def __getattr__(self, name: str) -> Any:
        copies = self.__dict__.get("_copies", {})
        if name not in copies:
            raise AttributeError(f"a probe has no '{name}'; it has model, update, x, y and logits")
        value = self.__dict__[name] = copies[name]()
        return value

    def normalise(self, x: Tensor) -> Tensor:
        return as_floats(self.__dict__["_module"], x)


class SignalCall:
    """Calls a signal in one run.

    ``name``: with its package; ``flat``: the engine's model, which the signal never gets;
    ``width``: (d,) of a vector signal from its first call on, () otherwise; ``own``: whether it is
    fedbench's, which leaves the process's global state alone: to save and restore that takes longer
    than most signals.
    """

    def __init__(self, signal: Signal, name: str, flat: FlatModel, own: bool = False) -> None:
        self.name = name
        self._own = own
        self.vector = bool(signal.vector)
        self.width: tuple[int, ...] = ()
        self._signal = signal
        self._flat = flat
        self._copy: nn.Module | None = None
        self._answer: Answers | None = None
        self._buffers: Tensor | None = None

    def row(
        self,
        update: Tensor,
        samples: Sequence[tuple[Tensor, Tensor]],
        logits: Sequence[Tensor],
        answer: Answers | None = None,
        buffers: Tensor | None = None,
    ) -> Tensor:
        """[N] or [N, d] float32: the signal on the model that the engine's module holds.

        Args:
            samples: (x, y) of each chunk.
            logits: outputs on the audit rows of each chunk, answered if there is an ``answer``.
            answer: a defense's answer to a query with these logits.
            buffers: [B] of the received model; None: the module's.

        Raises:
            SignalError: the signal failed.
            PhaseError: the defense that answers failed.
        """
        self._answer = answer
        self._buffers = buffers
        if self._own:
            values = self._measured(update, samples, logits)
        else:
            with at_work(f"signal {self.name}"), kept():
                values = self._measured(update, samples, logits)
        self._require_finite(values, logits)
        return values

    def _measured(
        self,
        update: Tensor,
        samples: Sequence[tuple[Tensor, Tensor]],
        logits: Sequence[Tensor],
    ) -> Tensor:
        chunks = zip(samples, logits, strict=True)
        return torch.cat([self._chunk(update, x, y, z) for (x, y), z in chunks])

    def _require_finite(self, values: Tensor, logits: Sequence[Tensor]) -> None:
        finite = torch.isfinite(values).reshape(len(values), -1).all(1)
        if finite.all():
            return
        plain = torch.cat(list(logits)).abs() < _LARGEST_LOGIT  # false of NaN, too
        plain = plain.reshape(len(values), -1).all(1)
        if bad := int((~finite & plain).sum()):
            kind = "vectors" if self.vector else "numbers"
            raise SignalError(
                f"{bad} of its {len(values)} {kind} are not finite, though the logits are"
            )

    def _chunk(
        self,
        update: Tensor,
        x: Tensor,
        y: Tensor,
        logits: Tensor,
    ) -> Tensor:
        probe = CopiedProbe(
            self._flat.module,
            self._flat.task,
            self._flat.rows(x, y, "audit")[1],
            None if self._buffers is None else self._buffers.clone(),
            model=self._model,
            update=update.clone,
            x=x.clone,
            y=y.clone,
            logits=logits.clone,
        )
        try:
            with torch.no_grad():
                values = self._signal.measure(probe)
        except PhaseError:  # the defense's error
            raise
        except BaseException as error:
            pass_on_interrupt(error)
            raise SignalError(describe_error(error)) from error
        return self._checked(values, y)

    def _checked(self, values: Any, y: Tensor) -> Tensor:
        """A plain tensor of the engine: no subclass, and no buffer that the signal reuses."""
        width = self.width
        is_tensor = isinstance(values, Tensor)
        if self.vector and not width and is_tensor and values.dim() == 2:
            width = tuple(values.shape[1:])
        expected = y.new_empty((len(y), *width), dtype=torch.float32)
        sized = not self.vector or width not in ((), (0,))
        if not (sized and is_tensor and _described(values) == _described(expected)):
            raise SignalError(f"it returned {_described(values)}; expected {self._wanted(y)}")
        self.width = width
        return expected.copy_(values.detach().as_subclass(Tensor))

    def _model(self) -> nn.Module:
        """A copy of the engine's module in eval mode, with its present parameters and buffers.

        A signal may change it. Its output is the defense's answer or, where gradients are taken,
        the logits themselves, since these need the parameters.
        """
        if self._copy is None:
            self._copy = deepcopy(self._flat.module)
            self._copy.register_forward_hook(lambda module, args, logits: self._answered(logits))
        self._copy.load_state_dict(self._flat.module.state_dict())
        return self._copy.eval()

    def _answered(self, logits: Tensor) -> Tensor:
        if self._answer is None or torch.is_grad_enabled():
            return logits
        return self._answer(logits)

    def _wanted(self, y: Tensor) -> str:
        n = len(y)
        device = y.device
        if not self.vector:
            return f"float32 [{n}] on {device}"
        if self.width:
            return f"float32 [{n}, {self.width[0]}] on {device}, as long as its first answer"
        return f"float32 [{n}, d] on {device}, d >= 1, since its `vector` is True"


def _described(value: object) -> str:
    """A returned value in a few words."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else "sparse "
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{layout}{dtype} {list(value.shape)} on {value.device}"
