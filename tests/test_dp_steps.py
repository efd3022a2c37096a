"""Steps of DP-SGD: the same as from per-sample gradients with the same noise, a rate of their own, views of images."""

from __future__ import annotations

import math

import pytest
import torch
from parties import generator, member_context
from pydantic import ValidationError
from tiny import tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Batch, Defense, MemberContext, MemberData
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.plugins.defenses.dp_sgd import DPSGD, random_views

CLASSES = 3


class OneByOne(DPSGD):
    """Algorithm 1 as it is written: every gradient made, clipped, summed."""

    def _clipped_sum(self, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        views, x, y = self.params.augment_multiplicity, batch.x, batch.y
        if views > 1:
            x, y = random_views(x, views, self.params.shift, self.params.flip, ctx.generator), y.repeat_interleave(views)
        rows = ctx.per_sample_gradients(x, y).unflatten(0, (-1, views)).mean(1)
        return (rows * (self.params.clip / rows.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)


def images(samples: int, size: int, seed: int) -> MemberData:
    g = generator(seed)
    return MemberData(torch.randn(samples, 3, size, size, generator=g), torch.randint(0, CLASSES, (samples,), generator=g))


def setup_of(defense: Defense, name: str, **changes):
    g = torch.Generator().manual_seed(0)
    module = {"mlp": MLP(hidden=(16, 8)), "cnn-small": SmallCNN(channels=4, hidden=8)}[name].build((3, 8, 8), CLASSES)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g) + (p.dim() == 1))
    return tiny_setup(defense, module=module, clients=[images(12, 8, k) for k in range(4)], **changes)


@pytest.mark.parametrize("name", ["mlp", "cnn-small"])
@pytest.mark.parametrize(
    "params",
    [{"sigma": 0.1}, {"sigma": 0.1, "clip": 1e-3}, {"sigma": 0.05, "sampling": "poisson"},
     {"sigma": 0.1, "augment_multiplicity": 3, "shift": 1, "flip": True}],
    ids=["plain", "all-clipped", "poisson", "views"],
)  # fmt: skip
def test_a_whole_run_uploads_what_per_sample_gradients_give_with_the_same_noise(name, params):
    found, wanted = (
        torch.cat([r.uploads.updates for r in train_all(setup_of(kind(**params), name))[1]]) for kind in (DPSGD, OneByOne)
    )
    assert not torch.equal(found[0], train_all(setup_of(Defense(), name))[1][0].uploads.updates[0])
    apart = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(apart.max()) < 1e-4


# -- the rate --------------------------------------------------------------------------------------------------------


def step(module: nn.Module, data: MemberData, **params) -> torch.Tensor:
    ctx = member_context(module, data, key=5)
    return DPSGD(**params).local_step(Batch(data.x, data.y, torch.arange(len(data.y))), ctx)


@pytest.mark.parametrize("unit", ["example", "batch"])
def test_the_rate_scales_gradient_and_noise_alike(unit):
    module, data = MLP(hidden=(5,)).build((3, 4, 4), CLASSES), images(6, 4, 0)
    plain, fast = (step(module, data, sigma=0.5, clip_unit=unit, rate=rate) for rate in (1.0, 4.0))
    torch.testing.assert_close(fast, 4 * plain)


def test_the_rate_costs_no_epsilon():
    federation, _ = train_all(tiny_setup(DPSGD(sigma=2.0)))
    facts = [DPSGD(sigma=2.0, rate=rate).report(federation.parties.reports(1)[0]) for rate in (1.0, 8.0)]
    assert facts[0] == facts[1] and facts[0]["epsilon"] > 0


def test_weight_decay_goes_on_at_the_rate_of_the_federation():
    """With next to no gradient left, only the decay moves the parameters: by lr * decay a step, whatever the rate."""
    setup = tiny_setup(DPSGD(sigma=0, rate=1e-12), (0, 1, 2, 3), lr=0.1, momentum=0.0, weight_decay=0.5, rounds=1)
    start = setup.initial[0].clone()
    (result,) = train_all(setup)[1]
    steps = 2 * math.ceil(12 / 5)
    for update in result.uploads.updates:
        torch.testing.assert_close(start + update, start * (1 - 0.1 * 0.5) ** steps, rtol=1e-5, atol=1e-7)


def test_a_rate_is_no_parameter_of_a_client_s_update():
    with pytest.raises(ValidationError, match="rate is about the steps of a batch: leave it out with mode client"):
        DPSGD(mode="client", rate=2.0)


# -- views of images -------------------------------------------------------------------------------------------------


def test_views_of_cifar_images_are_averaged_before_they_are_clipped_in_cnn_small():
    torch.manual_seed(0)
    module, data = SmallCNN().build((3, 32, 32), CLASSES).double().train(), images(3, 32, 0)
    data = MemberData(data.x.double(), data.y)
    ctx = member_context(module, data, key=5)
    views = random_views(data.x, 4, 4, True, ctx.generator)
    rows = torch.stack([
        torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(module(x[None]), y[None]), list(module.parameters()))])
        for x, y in zip(views, data.y.repeat_interleave(4), strict=True)
    ]).unflatten(0, (3, 4)).mean(1)  # fmt: skip
    clip = float(rows.norm(dim=1).median())
    expected = (rows * (clip / rows.norm(dim=1, keepdim=True)).clamp_max(1)).mean(0)
    found = [step(module, data, sigma=0, clip=clip, augment_multiplicity=4, flip=True) for _ in range(2)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-12)
    rough = per_sample_gradients(module, data.x, data.y).norm(dim=1)
    assert not torch.allclose(rough, rows.norm(dim=1))  # the views are not the samples


def test_a_federation_with_views_is_deterministic():
    def run() -> torch.Tensor:
        defense = DPSGD(sigma=0.1, augment_multiplicity=4, shift=2, flip=True, rate=2.0)
        return torch.cat([r.uploads.updates for r in train_all(setup_of(defense, "cnn-small", rounds=2))[1]])

    assert torch.equal(run(), run())
