"""The shadow-model attack: a net learns on shadow models what membership does to a prediction."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import one_hot

from fedbench.core import Attack, Audit, Observations, Params, ShadowModels, SkipCell
from fedbench.plugins.attacks.flat_adam import FlatAdam
from fedbench.plugins.attacks.hidden_layer import HiddenLayer, with_ones
from fedbench.plugins.attacks.one_thread import one_thread
from fedbench.plugins.attacks.shadow_models.confidence import shadow_models_of

HIDDEN, BATCH, RATE = 64, 128, 1e-3


class ShadowModelAttack(Attack):
    """Score = the attack model's probability that the final model's prediction is one on a training sample.

    The attack model reads the softmax, sorted downwards, and the label; it learns from the predictions of all shadow
    models on their own training samples (in) and on the shadow samples they were not trained on (out), as many of each.
    It is trained anew for every target with the target's key, on the CPU.
    Source: Shokri et al., S&P 2017, sections V.C (shadow models) and V.E (attack model): 64 ReLU units; they have one model
    per class (``per_class``), here the class is an input by default, which shares what all classes have in common.
    Sorted predictions: Salem et al., NDSS 2019, who keep the three largest (``top``).
    """

    class Params(Params):
        top: int | None = Field(None, ge=1, description="how many of the largest probabilities it reads; null = all")
        per_class: bool = Field(False, description="one attack model per class (the paper) instead of the class as an input")
        epochs: int = Field(50, ge=1, le=10_000, description="passes over the shadow models' predictions")

    view = "external"
    needs_shadow_models = True
    threshold = 0.5

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        shadows = shadow_models_of(observations)
        x, y, member = self._lessons(shadows)
        queries = self._features(shadows.target_logits, audit.y)
        label = torch.from_numpy(np.array(audit.y, np.int64))
        score = np.empty(len(label), np.float64)
        for name, learnt, asked in self._groups(y, label):
            rows = learnt.nonzero().squeeze(1)
            chosen = rows[balanced(member[rows], audit.generator)]
            if len(chosen) == 0:
                raise SkipCell(f"the shadow samples hold no {name} both inside and outside a shadow model's training data")
            net = train(x[chosen], member[chosen], self.params.epochs, audit.generator)
            with torch.no_grad():  # float64: a float32 sigmoid is 1 from a logit of 17 on
                score[asked] = net(queries[asked]).double().sigmoid().numpy()
        return score

    def _lessons(self, shadows: ShadowModels) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """([M*S, features], [M*S] labels, [M*S] bool membership) of all shadow models' predictions."""
        y = np.array(shadows.shadow_y, np.int64)
        x = torch.cat([self._features(logits, y) for logits in shadows.shadow_logits])
        member = torch.from_numpy(np.array(shadows.shadow_member, bool)).flatten()
        return x, torch.from_numpy(y).repeat(len(shadows.shadow_logits)), member

    def _features(self, logits: np.ndarray, y: np.ndarray) -> torch.Tensor:
        """[n, top (+ C)] float32: the largest probabilities downwards, then the label unless each class has its model."""
        p = torch.from_numpy(np.array(logits, np.float32)).softmax(1)
        classes = p.shape[1]
        largest = p.sort(dim=1, descending=True).values[:, : self.params.top]
        if self.params.per_class:
            return largest
        return torch.cat([largest, one_hot(torch.from_numpy(np.array(y, np.int64)), classes).float()], dim=1)

    def _groups(self, y: torch.Tensor, label: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """What each attack model learns from ([M*S] bool) and answers for ([n] bool); every asked class must be there."""
        missing = sorted(set(label.tolist()) - set(y.tolist()))
        if missing:
            raise SkipCell(f"no shadow sample has the label {missing[0]}, so its predictions cannot be learnt")
        if not self.params.per_class:
            return [("sample", torch.ones_like(y, dtype=torch.bool), torch.ones_like(label, dtype=torch.bool))]
        return [(f"sample of class {c}", y == c, label == c) for c in sorted(set(label.tolist()))]


class AttackNet(nn.Module):
    """Linear(inputs, 64) -> ReLU -> Linear(64, 1); [n, inputs] -> [n], the value before the sigmoid.

    The weights are drawn from ``generator`` by PyTorch's usual rule (uniform, one over the root of the inputs).
    """

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.hidden = nn.Linear(inputs, HIDDEN, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(HIDDEN, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.out):
            for p in layer.parameters():
                nn.init.uniform_(p, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden(x).relu()).squeeze(1)


def train(x: torch.Tensor, member: torch.Tensor, epochs: int, generator: torch.Generator) -> AttackNet:
    """A net fitted to ``x`` [n, inputs] float32, ``member`` [n] bool: Adam, rate 1e-3, batches of 128, binary cross-entropy."""
    net = AttackNet(x.shape[1], generator)
    hidden, out = (
        np.concatenate([layer.weight.detach().numpy().T, layer.bias.detach().numpy()[None]]) for layer in (net.hidden, net.out)
    )
    written = HiddenLayer(hidden[None], out.T)
    adam, gradient = FlatAdam(written.flat), np.empty_like(written.flat)
    rows, labels = with_ones(x.numpy()), member.numpy().astype(np.float32)
    with one_thread():
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator).numpy()
            for start in range(0, len(x), BATCH):
                batch = order[start : start + BATCH]
                written.gradient(rows[batch][None], labels[batch][None], gradient)
                adam.step(gradient, RATE)
    with torch.no_grad():
        for layer, found in ((net.hidden, written.hidden[0]), (net.out, written.out.T)):
            layer.weight.copy_(torch.from_numpy(found[:-1].T))
            layer.bias.copy_(torch.from_numpy(found[-1]))
    return net.eval()


def balanced(member: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Positions of as many members as non-members, drawn from ``member`` [n] bool without replacement; in order."""
    sides = [side.nonzero().squeeze(1) for side in (member, ~member)]
    fewest = min(len(side) for side in sides)
    drawn = [side[torch.randperm(len(side), generator=generator)[:fewest]] for side in sides]
    return torch.cat(drawn).sort().values
