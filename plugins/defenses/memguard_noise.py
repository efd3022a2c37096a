"""MemGuard's two phases: noise that leaves the classifier guessing, and the coin that keeps its size within the budget."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from fedbench.plugins.defenses.memguard_net import Classifier

RATE = 0.1  # of a step of phase I along the gradient's direction, in logits
C2 = 10.0  # weight of the predicted label
C3 = tuple(10.0**i for i in range(-1, 6))  # weights of the distance, tried upwards as long as they succeed
SURE = 1e-5  # from 1/2: an answer is as good as it gets
GRID = 0.01  # logits, to which the coin looks: what lies below it may be the rounding of a forward pass in other chunks


def crafted(logits: torch.Tensor, g: Classifier, steps: int) -> torch.Tensor:
    """[n, C] in the dtype of ``logits`` [n, C]: phase I, the logits z + e of the largest weight of the distance that turned g's
    decision without changing the label; z where there is none.

    Minimises |h(softmax(z + e))| + c2 max(0, max_{j != l} (z_j + e_j) - z_l - e_l) + c3 |softmax(z + e) - softmax(z)|_1 by
    steps along the gradient's direction, at most ``steps`` for each c3, each sample by itself.
    Source: Jia et al., CCS 2019, section 4 (phase I) and algorithm 1; the constants are theirs.
    """
    z = logits.double()
    label = z.argmax(1)
    first = g.h(z.softmax(1))
    best = logits.clone()
    open_ = torch.nonzero((first.sigmoid() - 0.5).abs() > SURE).reshape(-1)
    for c3 in C3:
        if not len(open_):
            break
        x, turned = _descend(z[open_], label[open_], first[open_], g, c3, steps)
        x = x.to(logits)
        turned &= _leads(x, label[open_])
        open_ = open_[turned]
        best[open_] = x[turned]
    return best


def _descend(
    z: torch.Tensor, label: torch.Tensor, first: torch.Tensor, g: Classifier, c3: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """([n, C] where each sample's search ended, [n] whether g's decision had turned there with the label as it was)."""
    x, s = z.clone(), z.softmax(1)
    turned = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    live = torch.arange(len(z), device=z.device)  # who is done is not computed on
    for step in range(steps + 1):
        with torch.enable_grad():
            here = x[live].requires_grad_()
            p = here.softmax(1)
            h, true = g.h(p), label[live][:, None]
            behind = here.scatter(1, true, -torch.inf).amax(1) - here.gather(1, true).squeeze(1)
            loss = h.abs() + C2 * behind.relu() + c3 * (p - s[live]).abs().sum(1)
            (gradient,) = torch.autograd.grad(loss.sum(), here)
        done = (h.detach() * first[live] <= 0) & (behind.detach() < 0)
        turned[live[done]] = True
        live, gradient = live[~done], gradient[~done]
        if step == steps or not len(live):
            break
        x[live] -= RATE * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return x, turned


def _leads(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """[n] bool: whether the label's logit, and its probability, are above all others in the very dtype of the answer."""
    true = label[:, None]
    ahead = [v.gather(1, true).squeeze(1) > v.scatter(1, true, -torch.inf).amax(1) for v in (x, x.softmax(1))]
    return ahead[0] & ahead[1]


def used(logits: torch.Tensor, noisy: torch.Tensor, g: Classifier, budget: float, key: int) -> torch.Tensor:
    """[n, C]: phase II, each sample's ``noisy`` answer with probability p, else its ``logits``.

    p = 0 where the noise brings g no nearer to 1/2, else min(budget / d, 1) with d the L1 distance of the two softmaxes: the
    expected distance is at most ``budget``. The coin follows from ``key`` and the sample's own logits: whoever asks again
    gets the same answer, and cannot average the noise away.
    Source: Jia et al., CCS 2019, section 4 (phase II); their coin is thrown once for each sample, too.
    """
    return torch.where((coins(logits, key) < chance(logits, noisy, g, budget))[:, None], noisy, logits)


def chance(logits: torch.Tensor, noisy: torch.Tensor, g: Classifier, budget: float) -> torch.Tensor:
    """[n] float64: p of phase II."""
    before, after = (z.double().softmax(1) for z in (logits, noisy))
    off, near = ((g.h(p).sigmoid() - 0.5).abs() for p in (before, after))
    distance = (before - after).abs().sum(1)
    return torch.where(near < off, (budget / distance.clamp(min=1e-30)).clamp(max=1.0), 0.0)


def coins(logits: torch.Tensor, key: int) -> torch.Tensor:
    """[n] float64, uniform on [0, 1) over keys, from ``key`` and each row of ``logits``, rounded to
    ``GRID``, whatever is added to a whole row."""
    z = logits.double()
    rows = ((z - z.amax(1, keepdim=True)) / GRID).round().clamp(min=-1e15).long().cpu().numpy()
    salt = key.to_bytes(8, "little")
    drawn = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=6, key=salt).digest(), "little") for row in rows]
    return torch.from_numpy(np.array(drawn, dtype=np.float64) / 2**48).to(logits.device)
