"""SeqMIA's attack net: an LSTM with attention over its own states, with its gradient and Adam in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

HIDDEN = 50
CHUNK = 100  # samples that are scored at once: what they fill stays in the cache
_GATES = 4 * HIDDEN
# of nn.LSTM's rows (input, forget, candidate, output gate), in our order: the candidate first, so that the three with a sigmoid
# and, in the backward pass, the three that act through the cell are neighbours
_ROWS = np.r_[2 * HIDDEN : 3 * HIDDEN, : 2 * HIDDEN, 3 * HIDDEN : _GATES]


class SequenceNet:
    """LSTM -> attention of the last state over all states -> Linear on [last state, context].

    [n, T, d] -> [n, 2]. Source: Li et al. (CCS 2024), attack model. The weights are drawn from ``generator`` by PyTorch's usual
    rule (uniform, one over the root of the width), tensor by tensor as ``nn.LSTM`` and ``nn.Linear`` hold them.
    ``flat``: [P] all weights; ``gates`` [200, d + 2 + 50] (of the signals, both biases, of the state before) and ``head``
    [2, 50 + 50 + 1] (of the last state, of the context, the bias) are views of it.
    """

    def __init__(self, inputs: int, generator: torch.Generator, dtype: Any = np.float32) -> None:
        self.mean, self.std = np.zeros(inputs, dtype), np.ones(inputs, dtype)
        self.inputs = inputs + 2  # the biases' two are always 1
        size = _GATES * (self.inputs + HIDDEN)
        self.flat = np.empty(size + 2 * (2 * HIDDEN + 1), dtype)
        self.gates, self.head = self.views(self.flat)
        shapes = ((_GATES, inputs), (_GATES, HIDDEN), (_GATES, 1), (_GATES, 1))
        signals, state, *biases = (_drawn(shape, HIDDEN, generator)[_ROWS] for shape in shapes)
        self.gates[:] = np.concatenate([signals, *biases, state], axis=1)
        self.head[:] = np.concatenate([_drawn((2, n), 2 * HIDDEN, generator) for n in (2 * HIDDEN, 1)], axis=1)
        # sigmoid(a) = (1 + tanh(a / 2)) / 2: one call for all gates, and NumPy's tanh costs half of its exp
        self._halved = np.where(np.arange(_GATES) < HIDDEN, 1.0, 0.5).astype(dtype)[:, None]

    def views(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The gates' and the head's part of a vector as long as ``flat``."""
        size = _GATES * (self.inputs + HIDDEN)
        return flat[:size].reshape(_GATES, -1), flat[size:].reshape(2, -1)

    def standardise_by(self, x: np.ndarray) -> None:
        """Take each signal's mean and deviation over the samples and rounds of ``x`` [n, T, d]."""
        self.mean, self.std = x.mean((0, 1)), np.maximum(x.std((0, 1)), 1e-12)

    def read(self, x: np.ndarray) -> np.ndarray:
        """[T, d + 2, n]: ``x`` [n, T, d] as :meth:`forward` takes it."""
        z = ((x - self.mean) / self.std).transpose(1, 2, 0)
        return np.concatenate([z, np.ones((len(z), 2, len(x)), z.dtype)], axis=1).astype(self.flat.dtype, copy=False)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """[n, 2]: of ``x`` [n, T, d]."""
        read, said = self.read(x), np.empty((len(x), 2), self.flat.dtype)
        room = Room(self, len(read), min(CHUNK, len(x)))
        for start in range(0, len(x), CHUNK):
            part = read[:, :, start : start + CHUNK]
            if part.shape[2] < CHUNK:
                room = Room(self, *part.shape[::2])
            said[start : start + CHUNK] = self.forward(room, part).T
        return said

    def forward(self, room: Room, x: np.ndarray) -> np.ndarray:
        """[2, n]: the logits of ``x`` [T, d + 2, n]; ``room`` keeps what the gradient needs."""
        d, weights = self.inputs, self.gates * self._halved
        room.z[:-1, :d] = x
        np.matmul(weights[:, :d], room.z[0, :d], out=room.gate[0])  # the first state is zero
        before = None
        for step in room.steps:
            if before is not None:
                np.matmul(weights, step.z, out=step.gate)
            np.tanh(step.gate, out=step.gate)
            step.sigmoids *= 0.5
            step.sigmoids += 0.5
            np.multiply(step.into, step.candidate, out=step.cell)
            if before is not None:
                step.cell += np.multiply(step.keep, before.cell, out=room.spare)
            np.tanh(step.cell, out=step.seen)
            np.multiply(step.out, step.seen, out=step.state)
            before = step
        states, last = room.z[1:, d:], room.z[-1, d:]
        score = (states * last).sum(1)  # [T, n]
        room.weight = np.exp(score - score.max(0))
        room.weight /= room.weight.sum(0)
        room.answer[:HIDDEN] = last
        np.sum(room.weight[:, None] * states, axis=0, out=room.answer[HIDDEN:-1])
        return self.head @ room.answer

    def gradient(self, room: Room, wrong: np.ndarray, out: np.ndarray) -> None:
        """``out`` [P]: the gradient of a loss whose derivative by the last :meth:`forward`'s logits is ``wrong`` [2, n]."""
        d, (by_gates, by_head) = self.inputs, self.views(out)
        np.matmul(wrong, room.answer.T, out=by_head)
        by_state = self._through_attention(room, self.head.T[:-1] @ wrong)
        _slopes(room)
        out_gate = room.gate[:, 3 * HIDDEN :]
        shown = out_gate - room.z[1:, d:] * room.seen  # o (1 - tanh(c)^2), as a state is o tanh(c)
        back, cell, after = self.gates[:, d:].T, np.zeros_like(room.spare), None
        for step, h, through in zip(reversed(room.steps), by_state[::-1], shown[::-1], strict=True):
            if after is not None:  # whose `slope` holds the derivatives by its gates' sums by now
                h += np.matmul(back, after.slope, out=room.spare)
                cell *= after.keep
            cell += np.multiply(through, h, out=room.spare)
            step.through_cell *= cell
            step.through_out *= h
            after = step
        products = room.products
        np.matmul(room.slope[0], room.z[0, :d].T, out=products[0, :, :d])  # the first state is zero, and stays so in `products`
        np.matmul(room.slope[1:], room.z[1:-1].swapaxes(1, 2), out=products[1:])
        np.sum(products, axis=0, out=by_gates)

    def _through_attention(self, room: Room, by_answer: np.ndarray) -> np.ndarray:
        """[T, 50, n]: the derivative by the states, from the one by [last state, context]."""
        states, last, by_context, weight = room.z[1:, self.inputs :], room.z[-1, self.inputs :], by_answer[HIDDEN:], room.weight
        by_weight = (states * by_context).sum(1)
        by_score = weight * (by_weight - (weight * by_weight).sum(0))
        by_state = weight[:, None] * by_context
        by_state += by_score[:, None] * last
        by_state[-1] += by_answer[:HIDDEN] + (by_score[:, None] * states).sum(0)
        return by_state


class Step:
    """Views of what belongs to step ``t`` of a :class:`Room`."""

    def __init__(self, room: Room, inputs: int, t: int) -> None:
        self.z, self.state = room.z[t], room.z[t + 1, inputs:]
        self.gate, self.sigmoids, self.cell, self.seen = room.gate[t], room.gate[t, HIDDEN:], room.cell[t], room.seen[t]
        self.candidate, self.into, self.keep, self.out = self.gate.reshape(4, HIDDEN, -1)
        self.slope, self.through_cell, self.through_out = room.slope[t], *np.split(room.slope[t].reshape(4, HIDDEN, -1), [3])


class Room:
    """What one pass over ``n`` sequences of ``steps`` fills, to be used again for as many."""

    def __init__(self, net: SequenceNet, steps: int, n: int) -> None:
        def empty(*shape: int) -> np.ndarray:
            return np.empty(shape, net.flat.dtype)

        self.z = empty(steps + 1, net.inputs + HIDDEN, n)  # what the gates read: signals, two ones, the state before
        self.gate, self.slope = empty(steps, _GATES, n), empty(steps, _GATES, n)
        self.cell, self.seen, self.spare = empty(steps, HIDDEN, n), empty(steps, HIDDEN, n), empty(HIDDEN, n)
        self.weight = empty(steps, n)  # of the attention
        self.answer = np.ones((2 * HIDDEN + 1, n), net.flat.dtype)  # last state, context, 1
        self.products = np.zeros((steps, *net.gates.shape), net.flat.dtype)
        self.steps = [Step(self, net.inputs, t) for t in range(steps)]


def _slopes(room: Room) -> None:
    """How what each gate lets through changes with the gate's sum, into ``room.slope``: by the cell, the last by the state."""
    candidate, into, keep, out = room.gate.reshape(len(room.gate), 4, HIDDEN, -1).swapaxes(0, 1)
    by_candidate, by_into, by_keep, by_out = room.slope.reshape(len(room.gate), 4, HIDDEN, -1).swapaxes(0, 1)
    # tanh' = 1 - tanh^2 and sigmoid' = sigmoid - sigmoid^2, times what else stands in the product
    let_in = np.multiply(into, candidate, out=by_into)
    np.subtract(into, candidate * let_in, out=by_candidate)
    by_into -= into * let_in
    by_keep[0] = 0  # there is no cell before the first
    kept = np.multiply(keep[1:], room.cell[:-1], out=by_keep[1:])
    kept -= keep[1:] * kept
    state = np.multiply(out, room.seen, out=by_out)
    state -= out * state


def _drawn(shape: tuple[int, ...], width: int, generator: torch.Generator) -> np.ndarray:
    """Uniform between plus and minus one over the root of ``width``."""
    return torch.empty(shape).uniform_(-(width**-0.5), width**-0.5, generator=generator).numpy()


class FlatAdam:
    """Adam with weight decay in the gradient, on one array. Source: Kingma & Ba, ICLR 2015, algorithm 1."""

    def __init__(self, flat: np.ndarray, weight_decay: float) -> None:
        self._flat, self._weight_decay, self._steps = flat, weight_decay, 0
        self._m, self._v, self._room = np.zeros_like(flat), np.zeros_like(flat), np.empty_like(flat)

    def step(self, g: np.ndarray, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down ``g``, shaped as the array, which is overwritten."""
        self._steps += 1
        room, m, v = self._room, self._m, self._v
        g += np.multiply(self._flat, self._weight_decay, out=room)
        m *= beta1
        m += np.multiply(g, 1 - beta1, out=room)
        v *= beta2
        g *= g
        g *= 1 - beta2
        v += g
        np.sqrt(np.divide(v, 1 - beta2**self._steps, out=room), out=room)
        room += 1e-8
        np.divide(m, room, out=room)
        room *= rate / (1 - beta1**self._steps)
        self._flat -= room
