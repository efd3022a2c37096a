"""Networks that attacks train: fully connected nets in torch, and SeqMIA's recurrent net with its
gradient in NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

HIDDEN, BATCH, RATE = 64, 128, 1e-3


class Adam:
    """Adam with weight decay in the gradient; as ``torch.optim.Adam``, of which the first use costs
    seconds of imports.

    Source: Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, params: list[nn.Parameter], weight_decay: float = 0.0) -> None:
        self._params, self._weight_decay, self._steps = params, weight_decay, 0
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def step(
        self, loss: torch.Tensor, rate: float, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        """One step down the gradient of ``loss``."""
        self._steps += 1
        scale1, scale2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        grads = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            for p, g, (m, v) in zip(self._params, grads, self._moments, strict=True):
                g = g + self._weight_decay * p
                m.lerp_(g, 1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                p.addcdiv_(m, (v / scale2).sqrt_().add_(1e-8), value=-rate / scale1)


class HiddenLayerNet(nn.Module):
    """Linear(inputs, 64) -> ReLU -> Linear(64, 1); [n, inputs] -> [n], the value before the
    sigmoid.

    The weights are drawn from ``generator`` by PyTorch's usual rule (uniform, one over the root of
    the inputs). ``mean``, ``std``: [inputs], which inputs are shifted and divided by.
    """

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mean, self.std = torch.zeros(inputs), torch.ones(inputs)
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.hidden = nn.Linear(inputs, HIDDEN, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(HIDDEN, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.out):
            for p in layer.parameters():
                nn.init.uniform_(
                    p, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator
                )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden((x - self.mean) / self.std).relu()).squeeze(1)

    def logits(self, x: torch.Tensor) -> np.ndarray:
        """[n] float64 for ``x`` [n, inputs]."""
        with torch.no_grad():
            return self(x).double().numpy()


def trained_net(
    x: torch.Tensor,
    member: torch.Tensor,
    epochs: int,
    generator: torch.Generator,
    weight_decay: float = 0.0,
    standardise: bool = False,
) -> HiddenLayerNet:
    """A net fitted to ``x`` [n, inputs] float32 and ``member`` [n] bool: Adam, rate 1e-3, batches
    of 128, cross-entropy.
    """
    net, y = HiddenLayerNet(x.shape[1], generator), member.float()
    if standardise:
        net.mean, net.std = x.mean(0), x.std(0, correction=0).clamp_min(1e-12)
    adam = Adam(list(net.parameters()), weight_decay)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            adam.step(binary_cross_entropy_with_logits(net(x[batch]), y[batch]), RATE)
    return net


# --- SeqMIA's recurrent net -----------------------------------------------------------------------


STATE = 50
CHUNK = 100  # samples that are scored at once: what they fill stays in the cache
_GATES = 4 * STATE
# of nn.LSTM's rows (input, forget, candidate, output gate), in our order: the candidate first, so
# that the three with a sigmoid and, in the backward pass, the three that act through the cell are
# neighbours
_ROWS = np.r_[2 * STATE : 3 * STATE, : 2 * STATE, 3 * STATE : _GATES]


class SequenceNet:
    """LSTM -> attention of the last state over all states -> Linear on [last state, context].

    [n, T, d] -> [n, 2]. Source: Li et al. (CCS 2024), attack model. The weights are drawn from
    ``generator`` by PyTorch's usual rule (uniform, one over the root of the width), tensor by
    tensor as ``nn.LSTM`` and ``nn.Linear`` hold them. ``flat``: [P] all weights; ``gates`` [200, d
    + 2 + 50] (of the signals, both biases, of the state before) and ``head`` [2, 50 + 50 + 1] (of
    the last state, of the context, the bias) are views of it.
    """

    def __init__(self, inputs: int, generator: torch.Generator, dtype: Any = np.float32) -> None:
        self.mean, self.std = np.zeros(inputs, dtype), np.ones(inputs, dtype)
        self.inputs = inputs + 2  # the biases' two are always 1
        self._passes: dict[tuple[int, ...], Pass] = {}
        size = _GATES * (self.inputs + STATE)
        self.flat = np.empty(size + 2 * (2 * STATE + 1), dtype)
        self.gates, self.head = self.views(self.flat)
        shapes = ((_GATES, inputs), (_GATES, STATE), (_GATES, 1), (_GATES, 1))
        signals, state, *biases = (_drawn(shape, STATE, generator)[_ROWS] for shape in shapes)
        self.gates[:] = np.concatenate([signals, *biases, state], axis=1)
        self.head[:] = np.concatenate(
            [_drawn((2, n), 2 * STATE, generator) for n in (2 * STATE, 1)], axis=1
        )
        # sigmoid(a) = (1 + tanh(a / 2)) / 2: one call for all gates, and NumPy's tanh costs half of
        # its exp
        self._halved = np.where(np.arange(_GATES) < STATE, 1.0, 0.5).astype(dtype)[:, None]

    def views(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The gates' and the head's part of a vector as long as ``flat``."""
        size = _GATES * (self.inputs + STATE)
        return flat[:size].reshape(_GATES, -1), flat[size:].reshape(2, -1)

    def standardise_by(self, x: np.ndarray) -> None:
        """Take each signal's mean and deviation over the samples and rounds of ``x`` [n, T, d]."""
        self.mean, self.std = x.mean((0, 1)), np.maximum(x.std((0, 1)), 1e-12)

    def read(self, x: np.ndarray) -> np.ndarray:
        """[T, d + 2, n]: ``x`` [n, T, d] as :meth:`forward` takes it."""
        z = ((x - self.mean) / self.std).transpose(1, 2, 0)
        return np.concatenate([z, np.ones((len(z), 2, len(x)), z.dtype)], axis=1).astype(
            self.flat.dtype, copy=False
        )

    def logits(self, x: np.ndarray) -> np.ndarray:
        """[n, 2]: of ``x`` [n, T, d]."""
        read = self.read(x)
        return np.concatenate(
            [self.forward(read[:, :, i : i + CHUNK])[0].T for i in range(0, len(x), CHUNK)]
        )

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Pass]:
        """[2, n]: the logits of ``x`` [T, d + 2, n]; and what the gradient needs, until the next
        pass of that shape.
        """
        d, n, weights = self.inputs, x.shape[2], self.gates * self._halved
        # the same memory again and again: to ask for it takes as long as the arithmetic
        if x.shape not in self._passes:
            self._passes[x.shape] = Pass.empty(len(x), d, n, x.dtype)
        room = self._passes[x.shape]
        z, gate, cell, seen, *_ = room
        z[:-1, :d] = x
        for t, sums in enumerate(gate.reshape(len(x), _GATES, n)):
            # the first state is zero
            np.matmul(weights if t else weights[:, :d], z[t] if t else z[0, :d], out=sums)
            np.tanh(sums, out=sums)
            sums[STATE:] *= 0.5
            sums[STATE:] += 0.5
            candidate, into, keep, out = gate[t]
            np.multiply(into, candidate, out=cell[t + 1])
            cell[t + 1] += keep * cell[t]
            np.tanh(cell[t + 1], out=seen[t])
            np.multiply(out, seen[t], out=z[t + 1, d:])
        states = z[1:, d:]
        score = (states * states[-1]).sum(1)  # [T, n]
        room.weight[:] = np.exp(score - score.max(0))
        room.weight[:] /= room.weight.sum(0)
        room.answer[: 2 * STATE] = np.concatenate(
            [states[-1], (room.weight[:, None] * states).sum(axis=0)]
        )
        return self.head @ room.answer, room

    def gradient(self, room: Pass, wrong: np.ndarray) -> np.ndarray:
        """[P]: the gradient of a loss; ``wrong`` [2, n]: its derivative by the logits of
        :meth:`forward`.
        """
        d, flat, (z, gate, cell, seen, weight, answer, slope, products) = (
            self.inputs,
            np.empty_like(self.flat),
            room,
        )
        by_gates, by_head = self.views(flat)
        by_head[:] = wrong @ answer.T
        by_last, by_context = np.split(self.head.T[:-1] @ wrong, 2)
        states = z[1:, d:]
        by_weight = (states * by_context).sum(1)
        by_score = weight * (by_weight - (weight * by_weight).sum(0))
        by_state = weight[:, None] * by_context
        by_state += by_score[:, None] * states[-1]
        by_state[-1] += by_last + (by_score[:, None] * states).sum(0)
        # by each gate's sum: tanh' = 1 - tanh^2 and sigmoid' = sigmoid - sigmoid^2, times what else
        # stands in the product
        candidate, into, keep, out = gate.swapaxes(0, 1)
        by_candidate, by_into, by_keep, by_out = slope.swapaxes(0, 1)
        np.multiply(into, candidate, out=by_into)
        np.subtract(into, candidate * by_into, out=by_candidate)
        by_into -= into * by_into
        np.multiply(keep, cell[:-1], out=by_keep)
        by_keep -= keep * by_keep
        by_out[:] = states - out * states
        shown = out - states * seen  # o (1 - tanh(c)^2), as a state is o tanh(c)
        back, by_cell = self.gates[:, d:].T, np.zeros_like(states[0])
        for t in reversed(range(len(slope))):
            if t + 1 < len(slope):
                by_state[t] += back @ slope[t + 1].reshape(_GATES, -1)
                by_cell *= keep[t + 1]
            by_cell += shown[t] * by_state[t]
            slope[t, :3] *= by_cell
            slope[t, 3] *= by_state[t]
        np.matmul(slope.reshape(len(slope), _GATES, -1), z[:-1].swapaxes(1, 2), out=products)
        np.sum(products, axis=0, out=by_gates)
        return flat


class Pass(NamedTuple):
    """What a pass over n sequences of T steps fills: ``z`` [T + 1, d + 2 + 50, n] what the gates
    read, ``gate`` and ``slope`` [T, 4, 50, n], ``cell`` [T + 1, 50, n], ``seen`` [T, 50, n] its
    tanh, ``weight`` [T, n] of the attention, ``answer`` [101, n] last state, context and 1,
    ``products`` [T, 200, d + 2 + 50].
    """

    z: np.ndarray
    gate: np.ndarray
    cell: np.ndarray
    seen: np.ndarray
    weight: np.ndarray
    answer: np.ndarray
    slope: np.ndarray
    products: np.ndarray

    @classmethod
    def empty(cls, steps: int, inputs: int, n: int, dtype: Any) -> Pass:
        """Zeros, and ones in ``answer``."""
        wide, gates = inputs + STATE, (steps, 4, STATE, n)
        shapes = (
            (steps + 1, wide, n),
            gates,
            (steps + 1, STATE, n),
            (steps, STATE, n),
            (steps, n),
            (2 * STATE + 1, n),
            gates,
            (steps, _GATES, wide),
        )
        room = cls(*[np.zeros(shape, dtype) for shape in shapes])
        room.answer[:] = 1
        return room


def _drawn(shape: tuple[int, ...], width: int, generator: torch.Generator) -> np.ndarray:
    """Uniform between plus and minus one over the root of ``width``."""
    return torch.empty(shape).uniform_(-(width**-0.5), width**-0.5, generator=generator).numpy()


class FlatAdam:
    """Adam with weight decay in the gradient, on one array. Source: Kingma & Ba, ICLR 2015,
    algorithm 1.
    """

    def __init__(self, flat: np.ndarray, weight_decay: float) -> None:
        self._flat, self._weight_decay, self._steps = flat, weight_decay, 0
        self._m, self._v = np.zeros_like(flat), np.zeros_like(flat)

    def step(self, g: np.ndarray, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down ``g``, shaped as the array."""
        self._steps += 1
        g = g + self._flat * self._weight_decay
        self._m = self._m * beta1 + g * (1 - beta1)
        self._v = self._v * beta2 + g * g * (1 - beta2)
        size = np.sqrt(self._v / (1 - beta2**self._steps)) + 1e-8
        self._flat -= self._m / size * (rate / (1 - beta1**self._steps))
