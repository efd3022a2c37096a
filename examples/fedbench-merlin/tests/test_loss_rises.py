"""What noise does to the loss, where it is known."""

import pytest
import torch
from fedbench.core import Probe, UserError
from fedbench_merlin.loss_rises import LossRises
from torch import nn


class Valley(nn.Module):
    """Logits (-|x|^2, 0): for label 0 the loss has its minimum at x = 0; for label 1 its
    maximum.
    """

    def forward(self, x):
        depth = -x.float().flatten(1).square().sum(1)
        return torch.stack([depth, torch.zeros_like(depth)], dim=1)


def measured(x, y, model=None, **params):
    """The signal at these inputs."""
    model, y = model or Valley(), torch.tensor(y)
    with torch.no_grad():
        return LossRises(**params).measure(
            Probe(model=model, update=torch.zeros(1), x=x, y=y, logits=model(x))
        )


def test_in_a_minimum_the_loss_always_rises_and_in_a_maximum_never():
    assert measured(torch.zeros(2, 3), [0, 1], draws=20).tolist() == [1, 0]


def test_on_a_slope_it_rises_half_of_the_time():
    found = measured(torch.full((1, 3), 5.0), [0], draws=2_000)
    assert found.item() == pytest.approx(0.5, abs=0.05)


def test_it_is_the_share_of_draws_counted_one_by_one():
    x, y, model = torch.randn(6, 4), [0, 1, 2, 0, 1, 2], nn.Linear(4, 3)
    generator, rises = torch.Generator().manual_seed(7), torch.zeros(6)
    for _ in range(50):
        noise = 0.3 * torch.randn(4, generator=generator)
        for i, label in enumerate(y):
            before, after = (-model(z).log_softmax(0)[label] for z in (x[i], x[i] + noise))
            rises[i] += bool(after > before)
    assert torch.allclose(measured(x, y, model, sigma=0.3, draws=50, seed=7), rises / 50)


def test_a_number_depends_on_no_other_sample():
    x, y, model = torch.randn(6, 4), [0, 1, 2, 0, 1, 2], nn.Linear(4, 3)
    assert torch.equal(measured(x, y, model)[[4, 1]], measured(x[[4, 1]], [1, 1], model))


def test_bytes_stay_bytes():
    seen = []

    class Looks(Valley):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    x = torch.tensor([[[[0, 128, 255]]]], dtype=torch.uint8)
    measured(x, [0], Looks(), draws=30, sigma=0.05)
    noisy = torch.cat(seen[1:])
    assert noisy.dtype == torch.uint8 and (noisy != x).any()
    assert (noisy[..., 1] > 60).all() and (noisy[..., 1] < 200).all()


def test_tokens_are_refused():
    with pytest.raises(UserError, match=r"floats or byte images, not torch\.int64"):
        measured(torch.zeros(1, 3, dtype=torch.int64), [0])
