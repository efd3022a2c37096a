"""Networks that attacks train: fully connected nets in torch, and SeqMIA's recurrent net with its
gradient in NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

HIDDEN, BATCH, RATE = 64, 128, 1e-3
BETA1, BETA2 = 0.9, 0.999  # of Adam: decay of the moments


class Adam:
    """Adam with weight decay in the gradient.

    ``torch.optim.Adam`` computes the same, but its first use costs seconds of imports. Source:
    Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, params: list[nn.Parameter], weight_decay: float = 0.0) -> None:
        self._params = params
        self._weight_decay = weight_decay
        self._steps = 0
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def step(self, loss: Tensor, rate: float) -> None:
        """Take one step down the gradient of ``loss``."""
        self._steps += 1
        scale1 = 1 - BETA1**self._steps
        scale2 = 1 - BETA2**self._steps
        grads = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            for p, g, (m, v) in zip(self._params, grads, self._moments, strict=True):
                g = g + self._weight_decay * p
                m.lerp_(g, 1 - BETA1)
                v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
                p.addcdiv_(m, (v / scale2).sqrt_().add_(1e-8), value=-rate / scale1)


class HiddenLayerNet(nn.Module):
    """Linear(inputs, 64) -> ReLU -> Linear(64, 1); [n, inputs] -> [n], the value before the
    sigmoid.

    The weights are drawn from ``generator`` by PyTorch's usual rule (uniform, one over the root of
    the inputs). ``mean``, ``std``: [inputs], which inputs are shifted and divided by.
    """

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mean = torch.zeros(inputs)
        self.std = torch.ones(inputs)
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.hidden = nn.Linear(inputs, HIDDEN, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(HIDDEN, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.out):
            bound = layer.in_features**-0.5
            for p in layer.parameters():
                nn.init.uniform_(p, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden((x - self.mean) / self.std).relu()).squeeze(1)

    def logits(self, x: Tensor) -> ndarray:
        """Return [n] float64 for ``x`` [n, inputs]."""
        with torch.no_grad():
            return self(x).double().numpy()


def trained_net(
    x: Tensor,
    member: Tensor,
    epochs: int,
    generator: torch.Generator,
    weight_decay: float = 0.0,
    standardise: bool = False,
) -> HiddenLayerNet:
    """Fit a net to ``x`` [n, inputs] float32 and ``member`` [n] bool: Adam, rate 1e-3, batches of
    128, cross-entropy.
    """
    net = HiddenLayerNet(x.shape[1], generator)
    y = member.float()
    if standardise:
        net.mean = x.mean(0)
        net.std = x.std(0, correction=0).clamp_min(1e-12)
    adam = Adam(list(net.parameters()), weight_decay)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            adam.step(binary_cross_entropy_with_logits(net(x[batch]), y[batch]), RATE)
    return net


# --- SeqMIA's recurrent net -----------------------------------------------------------------------


STATE = 50
CHUNK = 100  # samples that are scored at once: their buffers stay in the cache
_GATES = 4 * STATE
_HEAD = 2 * (2 * STATE + 1)  # weights
# of nn.LSTM's rows (input, forget, candidate, output gate), in our order: the candidate first, so
# that the three with a sigmoid and, in the backward pass, the three that act through the cell are
# neighbours
_ROWS = np.r_[2 * STATE : 3 * STATE, : 2 * STATE, 3 * STATE : _GATES]


class Pass(NamedTuple):
    """Values of a pass over n sequences of T steps, kept for the gradient."""

    read: ndarray
    """[T + 1, d + 2 + 50, n]: what the gates read, signals, 1 twice and the state before"""
    gate: ndarray
    """[T, 4, 50, n]: candidate, input gate, forget gate, output gate"""
    cell: ndarray
    """[T + 1, 50, n]"""
    squashed: ndarray
    """[T, 50, n]: tanh of the cell"""
    attention: ndarray
    """[T, n]: weights"""
    summary: ndarray
    """[101, n]: last state, context and 1"""
    slope: ndarray
    """[T, 4, 50, n]: derivative of the loss by each gate's sum"""
    products: ndarray
    """[T, 200, d + 2 + 50]: derivative by the gates' weights in each step"""

    @classmethod
    def empty(cls, steps: int, inputs: int, n: int, dtype: Any) -> Pass:
        """Return zeros, and ones in ``summary``."""
        wide = inputs + STATE
        gates = (steps, 4, STATE, n)
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
        buffers = cls(*(np.zeros(shape, dtype) for shape in shapes))
        buffers.summary[:] = 1
        return buffers

    @property
    def states(self) -> ndarray:
        """[T, 50, n]: the state after each step."""
        return self.read[1:, -STATE:]


class SequenceNet:
    """LSTM -> attention of the last state over all states -> Linear on [last state, context].

    [n, T, d] -> [n, 2]. Source: Li et al. (CCS 2024), attack model. The weights are drawn from
    ``generator`` by PyTorch's usual rule (uniform, one over the root of the width), tensor by
    tensor as ``nn.LSTM`` and ``nn.Linear`` hold them. ``flat``: [P] all weights; ``gates`` [200, d
    + 2 + 50] (of the signals, both biases, of the state before) and ``head`` [2, 50 + 50 + 1] (of
    the last state, of the context, the bias) are views of it.
    """

    def __init__(self, inputs: int, generator: torch.Generator, dtype: Any = np.float32) -> None:
        self.mean = np.zeros(inputs, dtype)
        self.std = np.ones(inputs, dtype)
        self.inputs = inputs + 2  # the biases' two are always 1
        # the same memory again and again: to ask for it takes as long as the arithmetic
        self._passes: dict[tuple[int, ...], Pass] = {}
        self.flat = np.empty(_GATES * (self.inputs + STATE) + _HEAD, dtype)
        self.gates, self.head = self.views(self.flat)
        shapes = ((_GATES, inputs), (_GATES, STATE), (_GATES, 1), (_GATES, 1))
        signals, state, *biases = (_drawn(shape, STATE, generator)[_ROWS] for shape in shapes)
        self.gates[:] = np.concatenate([signals, *biases, state], axis=1)
        weights = [_drawn((2, n), 2 * STATE, generator) for n in (2 * STATE, 1)]
        self.head[:] = np.concatenate(weights, axis=1)
        # sigmoid(a) = (1 + tanh(a / 2)) / 2: one call for all gates, and NumPy's tanh costs half of
        # its exp
        self._halved = np.where(np.arange(_GATES) < STATE, 1.0, 0.5).astype(dtype)[:, None]

    def views(self, flat: ndarray) -> tuple[ndarray, ndarray]:
        """Return the gates' and the head's part of a vector as long as ``flat``."""
        return flat[:-_HEAD].reshape(_GATES, -1), flat[-_HEAD:].reshape(2, -1)

    def standardise_by(self, x: ndarray) -> None:
        """Take each signal's mean and deviation over the samples and rounds of ``x`` [n, T, d]."""
        self.mean = x.mean((0, 1))
        self.std = np.maximum(x.std((0, 1)), 1e-12)

    def read(self, x: ndarray) -> ndarray:
        """Return ``x`` [n, T, d] as :meth:`forward` takes it, [T, d + 2, n]."""
        z = ((x - self.mean) / self.std).transpose(1, 2, 0)
        ones = np.ones((len(z), 2, len(x)), z.dtype)
        return np.concatenate([z, ones], axis=1).astype(self.flat.dtype, copy=False)

    def logits(self, x: ndarray) -> ndarray:
        """Return the logits [n, 2] of ``x`` [n, T, d]."""
        read = self.read(x)
        starts = range(0, len(x), CHUNK)
        return np.concatenate([self.forward(read[:, :, i : i + CHUNK])[0].T for i in starts])

    def forward(self, x: ndarray) -> tuple[ndarray, Pass]:
        """Return the logits [2, n] of ``x`` [T, d + 2, n], and the pass for :meth:`gradient`, valid
        until the next one of that shape.
        """
        if x.shape not in self._passes:
            self._passes[x.shape] = Pass.empty(len(x), self.inputs, x.shape[2], x.dtype)
        passed = self._passes[x.shape]
        passed.read[:-1, : self.inputs] = x
        self._step_through(passed)
        states = passed.states
        attention = passed.attention
        score = (states * states[-1]).sum(1)  # [T, n]
        attention[:] = np.exp(score - score.max(0))
        attention[:] /= attention.sum(0)
        context = (attention[:, None] * states).sum(axis=0)
        passed.summary[: 2 * STATE] = np.concatenate([states[-1], context])
        return self.head @ passed.summary, passed

    def _step_through(self, passed: Pass) -> None:
        """Compute gates, cells and states of the LSTM."""
        read, gate, cell, squashed, *_ = passed
        d = self.inputs
        weights = self.gates * self._halved
        for t, sums in enumerate(gate.reshape(len(gate), _GATES, -1)):
            if t:
                np.matmul(weights, read[t], out=sums)
            else:  # the first state is zero
                np.matmul(weights[:, :d], read[0, :d], out=sums)
            np.tanh(sums, out=sums)
            sums[STATE:] *= 0.5
            sums[STATE:] += 0.5
            candidate, into, keep, out = gate[t]
            np.multiply(into, candidate, out=cell[t + 1])
            cell[t + 1] += keep * cell[t]
            np.tanh(cell[t + 1], out=squashed[t])
            np.multiply(out, squashed[t], out=read[t + 1, d:])

    def gradient(self, passed: Pass, by_logits: ndarray) -> ndarray:
        """Return the gradient [P] of a loss with the derivative ``by_logits`` [2, n]."""
        flat = np.empty_like(self.flat)
        by_gates, by_head = self.views(flat)
        by_head[:] = by_logits @ passed.summary.T
        by_last, by_context = np.split(self.head.T[:-1] @ by_logits, 2)
        states = passed.states
        attention = passed.attention
        by_attention = (states * by_context).sum(1)
        by_score = attention * (by_attention - (attention * by_attention).sum(0))
        by_state = attention[:, None] * by_context
        by_state += by_score[:, None] * states[-1]
        by_state[-1] += by_last + (by_score[:, None] * states).sum(0)
        self._step_back(passed, by_state)
        slope = passed.slope.reshape(len(states), _GATES, -1)
        np.matmul(slope, passed.read[:-1].swapaxes(1, 2), out=passed.products)
        np.sum(passed.products, axis=0, out=by_gates)
        return flat

    def _step_back(self, passed: Pass, by_state: ndarray) -> None:
        """Compute ``slope`` from the derivative by the states [T, 50, n], which is overwritten."""
        _set_gate_slopes(passed)
        gate = passed.gate
        slope = passed.slope
        # o (1 - tanh(c)^2), as a state is o tanh(c)
        state_by_cell = gate[:, 3] - passed.states * passed.squashed
        back = self.gates[:, self.inputs :].T
        by_cell = np.zeros_like(by_state[0])
        for t in reversed(range(len(slope))):
            if t + 1 < len(slope):
                by_state[t] += back @ slope[t + 1].reshape(_GATES, -1)
                by_cell *= gate[t + 1, 2]
            by_cell += state_by_cell[t] * by_state[t]
            slope[t, :3] *= by_cell
            slope[t, 3] *= by_state[t]


def _set_gate_slopes(passed: Pass) -> None:
    """Set ``slope`` to the derivative of cell and state by each gate's sum: tanh' = 1 - tanh^2 and
    sigmoid' = sigmoid - sigmoid^2, times the gate's factor.
    """
    candidate, into, keep, out = passed.gate.swapaxes(0, 1)
    by_candidate, by_into, by_keep, by_out = passed.slope.swapaxes(0, 1)
    np.multiply(into, candidate, out=by_into)
    np.subtract(into, candidate * by_into, out=by_candidate)
    by_into -= into * by_into
    np.multiply(keep, passed.cell[:-1], out=by_keep)
    by_keep -= keep * by_keep
    by_out[:] = passed.states - out * passed.states


def _drawn(shape: tuple[int, ...], width: int, generator: torch.Generator) -> ndarray:
    """Draw uniformly between plus and minus one over the root of ``width``."""
    bound = width**-0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator).numpy()


class FlatAdam:
    """Adam with weight decay in the gradient, on one array.

    Source: Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, flat: ndarray, weight_decay: float) -> None:
        self._flat = flat
        self._weight_decay = weight_decay
        self._steps = 0
        self._m = np.zeros_like(flat)
        self._v = np.zeros_like(flat)

    def step(self, g: ndarray, rate: float) -> None:
        """Take one step down ``g``, shaped as the array."""
        self._steps += 1
        g = g + self._flat * self._weight_decay
        self._m = self._m * BETA1 + g * (1 - BETA1)
        self._v = self._v * BETA2 + g * g * (1 - BETA2)
        size = np.sqrt(self._v / (1 - BETA2**self._steps)) + 1e-8
        self._flat -= self._m / size * (rate / (1 - BETA1**self._steps))
