"""Norms of long vectors: what is clipped to C is C long, whatever the number of entries and their size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import member_context

from fedbench.core import MemberContext, MemberData, norm, norms
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.norms import clip_factors
from fedbench.plugins.attacks.poisoning.angles import products, unit_rows
from fedbench.plugins.attacks.poisoning.selection import Masks
from fedbench.plugins.defenses.dp_sgd import DPSGD, clip_to
from fedbench.plugins.defenses.perturb import Perturb
from fedbench.plugins.defenses.rules.norm_clipping import norm_clipping
from fedbench.plugins.defenses.rules.server_dp import noisy_mean

LONG = 11_000_000  # a ResNet18's parameters
C = 0.5


def exactly(vector: torch.Tensor) -> float:
    return float(np.linalg.norm(vector.numpy().astype(np.float64)))


@pytest.fixture(scope="module", params=["equal", "normal"])
def long(request) -> torch.Tensor:
    if request.param == "equal":
        return torch.full((LONG,), 1e-3)
    return torch.randn(LONG, generator=torch.Generator().manual_seed(0))


def member() -> MemberContext:
    return member_context(torch.nn.Linear(2, 3), MemberData(torch.zeros(4, 2), torch.arange(4) % 3))


def clipped_rows(vector: torch.Tensor) -> torch.Tensor:
    rows = vector[None]
    return clip_factors(norms(rows).square(), C).to(rows) @ rows


CLIPPED = {
    "one by one": clipped_rows,
    "dp-sgd by client": lambda v: DPSGD(mode="client", sigma=0, clip_update=C).protect(v, member()),
    "clip_to": lambda v: clip_to(v, C),
    "perturb": lambda v: Perturb(clip=C, sigma=0).protect(v, member()),
    "norm-clipping": lambda v: norm_clipping(v[None], C),
    "server-dp": lambda v: noisy_mean(v[None], C, 0.0, torch.zeros_like(v)),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_a_long_vector_is_clipped_to_the_bound_and_not_a_thousandth_beyond(name, long):
    assert exactly(CLIPPED[name](long)) == pytest.approx(C, rel=1e-6)


def test_attacks_measure_long_rows_as_exactly(long):
    wanted = exactly(long)
    assert exactly(unit_rows(long[None])[0]) == pytest.approx(1, rel=1e-6)
    assert products(long[None], long[None]).item() == pytest.approx(wanted**2, rel=1e-5)
    masks = Masks.of(long[None], long, unit_rows(long[None]))
    assert masks.squared == pytest.approx([wanted**2], rel=1e-6)


def test_gradient_features_of_a_wide_layer_are_exact():
    g = torch.Generator().manual_seed(0)
    model = torch.nn.Conv2d(512, 512, 3, padding=1, bias=False)  # 2.4 million weights, the widest of a ResNet18
    head = torch.nn.Sequential(model, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    x, y = torch.randn(2, 512, 4, 4, generator=g), torch.tensor([3, 400])
    updates = torch.randn(1, model.weight.numel(), generator=g)
    found = gradient_features(head, x, y, updates)
    assert float(found.update_sq[0]) == pytest.approx(exactly(updates[0]) ** 2, rel=1e-6)
    for i in range(2):
        loss = torch.nn.functional.cross_entropy(head(x[i : i + 1]), y[i : i + 1])
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        assert float(found.sq[i]) == pytest.approx(exactly(gradient.flatten()) ** 2, rel=5e-6)


@given(st.integers(1, 5), st.sampled_from([1, 9, 1024, 1025, 5000]), st.sampled_from([0.0, 1e-30, 1e-18, 1.0, 1e18, 1e30]))
@settings(max_examples=40, deadline=None)
def test_norms_are_right_for_entries_of_any_size(k, p, size):
    rows = size * torch.randn(k, p, generator=torch.Generator().manual_seed(p))
    wanted = np.linalg.norm(rows.numpy().astype(np.float64), axis=1)
    np.testing.assert_allclose(norms(rows).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(norms(rows.T.contiguous().T).numpy(), wanted, rtol=1e-6)
    assert norms(rows).dtype == torch.float64 and float(norm(rows[0])) == float(norms(rows)[0])


def test_a_row_that_is_no_number_has_no_norm():
    rows = torch.ones(3, 2000)
    rows[0, 7], rows[1, 1999] = torch.nan, torch.inf
    found = norms(rows)
    assert found[0].isnan() and found[1] == torch.inf and float(found[2]) == pytest.approx(2000**0.5)
