"""Call a signal on copies of the engine's tensors and check what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from fedbench.core.contract.components import Probe, Signal
from fedbench.core.federation.guard import PhaseError
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.wrappers import as_floats
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.process.library_state import kept
from fedbench.core.words import describe_error

# Logits beyond it can differ by more than float32 holds: then a signal may overflow without being
# wrong.
_LARGEST_LOGIT = torch.finfo(torch.float32).max / 4


Answers = Callable[[torch.Tensor], torch.Tensor]  # logits [n, C] -> what is answered, [n, C]


class SignalError(RuntimeError):
    """A signal raised or returned a wrong value."""


class OwnProbe(Probe):
    """A probe with copies as fields, each made on first access: most signals read two of the five."""

    @classmethod
    def of(cls, module: nn.Module, **parts: Callable[[], Any]) -> OwnProbe:
        """``parts``: how each field is made; ``module``: the engine's, which knows how the data are
        normalised.
        """
        probe: OwnProbe = object.__new__(cls)
        probe.__dict__ |= {"_parts": parts, "_module": module}
        return probe

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("_parts", {})
        if name not in parts:
            raise AttributeError(f"a probe has no '{name}'; it has model, update, x, y and logits")
        made = self.__dict__[name] = parts[name]()
        return made

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        return as_floats(self.__dict__["_module"], x)


class SignalCall:
    """Calls a signal in one run. ``who``: its name with its package; ``flat``: the engine's model,
    which the signal never gets.

    ``vector``: whether it returns vectors; ``width``: (d,), known from the first call; () before,
    and for numbers.
    """

    def __init__(self, signal: Signal, who: str, flat: FlatModel) -> None:
        self.who, self.vector = who, bool(signal.vector)
        self.width: tuple[int, ...] = ()
        self._signal, self._flat = signal, flat
        self._copy: nn.Module | None = None
        self._answer: Answers | None = None

    def row(
        self,
        update: torch.Tensor,
        samples: Sequence[tuple[torch.Tensor, torch.Tensor]],
        logits: Sequence[torch.Tensor],
        answer: Answers | None = None,
    ) -> torch.Tensor:
        """[N] or [N, d] float32: the signal on one model, which the engine's module holds.

        ``samples``, ``logits``: chunk by chunk. ``answer``: what a defense makes of logits, already
        applied to ``logits``. Raises :class:`SignalError`, and ``PhaseError`` of the defense that
        answers.
        """
        self._answer = answer
        with at_work(f"signal {self.who}"), kept():
            parts = [
                self._chunk(update, x, y, z) for (x, y), z in zip(samples, logits, strict=True)
            ]
        values = torch.cat(parts)
        if not bool(torch.isfinite(values).all()):
            self._require_finite(values, torch.cat(list(logits)))
        return values

    def _chunk(
        self, update: torch.Tensor, x: torch.Tensor, y: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        probe = OwnProbe.of(
            self._flat.module,
            model=self._model,
            update=update.clone,
            x=x.clone,
            y=y.clone,
            logits=logits.clone,
        )
        try:
            with torch.no_grad():
                answer = self._signal.measure(probe)
        except PhaseError:  # the defense's error
            raise
        except BaseException as error:
            pass_on_interrupt(error)
            raise SignalError(describe_error(error)) from error
        width = self.width or self._first_width(answer)
        expected = y.new_empty((len(y), *width), dtype=torch.float32)
        if (
            not isinstance(answer, torch.Tensor)
            or _found(answer) != _found(expected)
            or (self.vector and not width)
        ):
            raise SignalError(f"it returned {_found(answer)}; expected {self._wanted(y)}")
        self.width = width
        # a plain tensor of the engine: no subclass, and no buffer that the signal reuses
        return torch.empty_like(expected).copy_(answer.detach().as_subclass(torch.Tensor))

    def _model(self) -> nn.Module:
        """A copy of the engine's module in eval mode, with its present parameters and buffers: a
        signal may change it.
        """
        if self._copy is None:
            self._copy = deepcopy(self._flat.module)
            self._copy.register_forward_hook(lambda module, args, logits: self._answered(logits))
        self._copy.load_state_dict(self._flat.module.state_dict())
        return self._copy.eval()

    def _answered(self, logits: torch.Tensor) -> torch.Tensor:
        """The defense's answer; the logits themselves where gradients are taken, since that needs
        the parameters.
        """
        return logits if self._answer is None or torch.is_grad_enabled() else self._answer(logits)

    def _first_width(self, answer: object) -> tuple[int, ...]:
        """(d,) of the first return value of a vector signal; () of anything else."""
        vectors = (
            self.vector
            and isinstance(answer, torch.Tensor)
            and answer.dim() == 2
            and answer.shape[1] > 0
        )
        return (answer.shape[1],) if vectors and isinstance(answer, torch.Tensor) else ()

    def _wanted(self, y: torch.Tensor) -> str:
        n, d = len(y), self.width[0] if self.width else "d"
        if not self.vector:
            return f"float32 [{n}] on {y.device}"
        why = "as long as its first answer" if self.width else "d >= 1, since its `vector` is True"
        return f"float32 [{n}, {d}] on {y.device}, {why}"

    def _require_finite(self, values: torch.Tensor, logits: torch.Tensor) -> None:
        plain = (logits.abs() < _LARGEST_LOGIT).all(1)  # false of NaN, too
        finite = torch.isfinite(values).reshape(len(values), -1).all(1)
        bad = int((~finite & plain).sum())
        if bad:
            what = "vectors" if self.vector else "numbers"
            raise SignalError(
                f"{bad} of its {len(values)} {what} are not finite, though the logits are"
            )


def _found(answer: object) -> str:
    """A returned value in a few words."""
    if not isinstance(answer, torch.Tensor):
        return type(answer).__name__
    sparse = "" if answer.layout == torch.strided else "sparse "
    return f"{sparse}{str(answer.dtype).removeprefix('torch.')} {list(answer.shape)} on {answer.device}"
