"""Per-sample gradients, their features, their clipped sum and their rows against one backward pass
a sample.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layered import (
    AWKWARD,
    CLASSES,
    SEQUENCES,
    Flat,
    Pair,
    Recurrent,
    Steps,
    cnn,
    filled,
    labels,
    one_backward_a_sample,
    randn,
    samples,
    size_of,
    tied_and_unused,
    twice,
)
from parties import member_context
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from fedbench.core import Batch, MemberData, norm, norms
from fedbench.core.numerics import gradients, layers, sums
from fedbench.core.numerics.chain import walked
from fedbench.core.numerics.gradients import clipped_gradient, gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.plugins.attacks.poisoning.evasion import products

BOUNDS = (1e-6, 0.5, 1.0, 1e9)  # times the median norm: all clipped to little, some clipped, none


def require_features(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, views: int = 1, chunk: int = 512
) -> None:
    u = randn(3, size_of(model), seed=2)
    # it measures in eval mode all the same
    found = gradient_features(model.train(), x.clone(), y, u, chunk)
    g = one_backward_a_sample(model.eval(), x, y)
    torch.testing.assert_close(found.dot, u @ g.T)
    torch.testing.assert_close(found.sq, (g * g).sum(1))
    torch.testing.assert_close(found.update_sq, (u * u).sum(1))


def require_clipped(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, views: int = 1, chunk: int = 256
) -> None:
    # each sample's mean gradient over its views
    g = one_backward_a_sample(model.eval(), x, y).unflatten(0, (-1, views)).mean(1)
    lengths = g.norm(dim=1)
    for share in BOUNDS:
        bound = share * (float(lengths.median()) or 1.0)
        expected = (g * (bound / lengths).clamp_max(1)[:, None]).nan_to_num(0.0).sum(0)
        found = clipped_gradient(model, x.clone(), y, bound, views, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * share)


WAYS = {"features": require_features, "clipped": require_clipped}
a_way = st.sampled_from(sorted(WAYS))


@contextmanager
def no_fallback():
    """A model of known layers needs no per-sample gradients."""
    refuse = AssertionError("per-sample gradients were instantiated")
    with patch.object(gradients, "per_sample_gradients", side_effect=refuse):
        yield


# -- layer by layer --------------------------------------------------------------------------------


def conv2d(draw) -> nn.Module:
    padding = draw(st.sampled_from([(0, 0), (2, 1), "same"]))
    stride = (1, 1) if padding == "same" else draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.integers(1, 2))
    groups, bias = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    mode = draw(st.sampled_from(["zeros", "circular"]))
    return nn.Conv2d(4, 4, kernel, stride, padding, dilation, groups, bias, padding_mode=mode)


def of_kind(kind: str, draw, n: int) -> tuple[nn.Module, torch.Tensor, bool]:
    """(layer, its input, whether the features are on the second axis): one of its kind, any
    options, ``n`` rows.
    """
    positions = draw(
        st.sampled_from([(1,), (2, 3)] if kind == "group-norm" else [(), (1,), (2, 3)])
    )
    if kind == "linear":
        inputs = draw(st.integers(1, 4))
        return nn.Linear(inputs, 4, bias=draw(st.booleans())), randn(n, *positions, inputs), False
    if kind == "conv2d":
        return conv2d(draw), randn(n, 4, 7, 6), True
    if kind == "group-norm":
        affine = draw(st.booleans())
        return (
            nn.GroupNorm(draw(st.sampled_from([1, 2])), 4, eps=0.1, affine=affine),
            randn(n, 4, *positions),
            True,
        )
    if kind == "layer-norm":
        shape = draw(st.sampled_from([(4,), (3, 4)]))
        return (
            nn.LayerNorm(shape, eps=0.1, bias=draw(st.booleans())),
            randn(n, *positions, *shape),
            False,
        )
    norm, shape = draw(
        st.sampled_from([(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (3,)), (nn.BatchNorm2d, (2, 3))])
    )
    return norm(4, eps=0.1), randn(n, 4, *shape), True


KINDS = ["linear", "conv2d", "group-norm", "layer-norm", "batch-norm"]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(way=a_way, data=st.data())
def test_a_known_layer_needs_no_per_sample_gradients(kind, way, data):
    """Whatever its options, what is frozen, the activation behind it, and how much is held in
    memory at once.
    """
    views = data.draw(st.integers(1, 3)) if way == "clipped" else 1
    layer, x, second = of_kind(kind, data.draw, views * data.draw(st.integers(1, 4)))
    # a view of a product: once overwritten, autograd has no gradient for it
    view = kind == "linear" and x.dim() > 2
    model = filled(
        Flat(layer, data.draw(st.sampled_from([nn.Tanh(), nn.ReLU(inplace=not view)])), second)
    )
    for p in layer.parameters():
        p.requires_grad_(data.draw(st.integers(0, 3)) < 3)
    held = {
        "KEPT": data.draw(st.sampled_from([sums.KEPT, 1])),
        "DEAR": data.draw(st.sampled_from([sums.DEAR, 0, 1e9])),
    }
    sliced = {
        "BUDGET": {"cpu": data.draw(st.sampled_from([2**20, 1]))},
        "LEAST": data.draw(st.integers(1, 2)),
    }
    with patch.multiple(sums, **held), patch.multiple(layers, **sliced), no_fallback():
        WAYS[way](model, x, labels(len(x)), views)


# -- where the layer-wise formulas would be wrong --------------------------------------------------


def test_a_chain_reaches_every_parameter_once():
    """Two layers share a parameter and another is in no layer: the numbers of parameters are equal,
    the sets are not.
    """
    assert walked(tied_and_unused(), randn(10, 4), labels(10)) is None


@pytest.mark.parametrize("name", AWKWARD)
@given(way=a_way)
def test_awkward_models_have_the_same_gradients(name, way):
    model = filled(AWKWARD[name]())
    few = 4 * size_of(model)  # elements of instantiated gradients at once
    with patch.object(gradients, "FALLBACK_BUDGET", few):
        WAYS[way](model, randn(10, 4), labels(10), views=2, chunk=8)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SEQUENCES)
@settings(max_examples=6)
@given(way=a_way, n=st.integers(1, 9), steps=st.integers(2, 7), chunk=st.integers(1, 10))
# a chunk as long as the sequence: the length of an axis tells nothing
@example(way="features", n=11, steps=5, chunk=5)
@example(way="clipped", n=11, steps=5, chunk=5)
def test_models_of_sequences_have_the_same_gradients(name, way, n, steps, chunk):
    x, y = samples(n, steps)
    model = filled(SEQUENCES[name]())
    model.head.bias.requires_grad_(n % 2 == 0)
    with no_fallback() if name == "rows" else nullcontext():
        WAYS[way](model, x, y, chunk=chunk)


def test_rows_that_a_later_chunk_moves_are_noticed():
    x, y = samples(12, 5)
    x = x[x[:, 0, 0].argsort()]
    x[6:] = x[6:].flip(0)  # the first chunk has its samples in order already
    require_features(filled(SEQUENCES["in-order"]()), x, y, chunk=6)


def test_the_layout_does_not_depend_on_the_parameters():
    """A head of zeros hides what lies before it; the answer must still hold when it has been
    trained.
    """
    model, (x, y) = filled(SEQUENCES["steps-first"]()), samples(8, 5)
    trained = model.head.weight.detach().clone()
    nn.init.zeros_(model.head.weight)
    require_features(model, x, y, chunk=5)
    with torch.no_grad():
        model.head.weight.copy_(trained)
    require_features(model, x, y, chunk=5)


# -- random layers, side effects, refusals ---------------------------------------------------------


def test_each_sample_and_each_view_draws_its_own_mask():
    model = filled(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, CLASSES, bias=False))).train()
    torch.manual_seed(3)
    for n, views in ((400, 1), (400, 400)):
        ones, y = torch.ones(n, 8, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
        found = clipped_gradient(model, ones, y, 1e9, views)
        # one mask for all would leave half of the columns at zero
        assert (found.view(CLASSES, 8)[0] != 0).all()


class DroppedGRU(Recurrent):
    def forward(self, x):
        return super().forward(dropout(x, 0.5, self.training))


RANDOM = {
    "found out while it runs": (
        lambda: Pair(lambda net, x: twice(net, dropout(x, 0.5, net.training))),
        randn(4, 4),
    ),
    "one backward a sample": (lambda: DroppedGRU(nn.GRU), randn(4, 5, 4)),
}


@pytest.mark.parametrize(("make", "x"), RANDOM.values(), ids=RANDOM)
def test_an_attempt_that_is_given_up_draws_nothing(make, x):
    model, y, found = filled(make()).train(), labels(4), []
    ways = (
        lambda: clipped_gradient(model, x, y, 1e9),
        lambda: per_sample_gradients(model, x, y).sum(0),
    )
    for way in ways:
        torch.manual_seed(5)
        found.append((way(), torch.get_rng_state()))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


CALLS = {
    "features": lambda model, x, y: gradient_features(model, x, y, randn(1, size_of(model))).sq,
    "clipped": lambda model, x, y: clipped_gradient(model, x, y, 1.0),
}


@pytest.mark.parametrize("fails", [False, True])
@given(way=a_way)
def test_the_model_is_left_as_found(fails, way):
    model = cnn().train()
    next(iter(model.children())).eval()  # a mixed state must survive
    modes = [m.training for m in model.modules()]
    x, before = randn(3, 3, 8, 8), torch.get_rng_state()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        if fails:
            with pytest.raises(RuntimeError, match="out of bounds"):
                CALLS[way](model, x, labels(3) + CLASSES)
        else:
            assert not CALLS[way](model, x, labels(3)).requires_grad
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def normed() -> nn.Module:
    return filled(
        nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, CLASSES)
        )
    )


REFUSED = {
    "bound 0": (
        lambda: clipped_gradient(Steps(None), randn(2, 4), labels(2), 0.0),
        "clipped to a positive norm",
    ),
    "no views": (
        lambda: clipped_gradient(Steps(None), randn(3, 4), labels(3), 1.0, 0),
        "3 rows .* samples with 0 views",
    ),
    "statistics, clipped": (
        lambda: clipped_gradient(normed(), randn(3, 4), labels(3), 1.0),
        r"layer '1' \(BatchNorm1d\)",
    ),
}


@pytest.mark.parametrize(("call", "told"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_gradient_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_a_member_clips_gradients_of_soft_labels():
    model, x = cnn(), randn(4, 3, 8, 8)
    ctx, soft = member_context(model, MemberData(x, labels(4))), torch.softmax(randn(4, CLASSES), 1)
    found = ctx.clipped_gradient(Batch(x, labels(4), torch.arange(4), soft=soft), 1e9)
    loss = cross_entropy(model(x), soft, reduction="sum")
    grads = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in grads]))


# -- norms of long vectors -------------------------------------------------------------------------


@given(
    st.integers(1, 5),
    st.sampled_from([1, 9, 1024, 1025, 5000]),
    st.sampled_from([0.0, 1e-30, 1e-18, 1.0, 1e18, 1e30]),
)
@settings(max_examples=30)
@example(1, 2**22, 1e-3)  # summed in float32, the squares of so many entries lose 1e-4 of the norm
def test_norms_are_right_for_entries_of_any_size(k, p, size):
    rows = size * torch.randn(k, p, generator=torch.Generator().manual_seed(p))
    wanted = np.linalg.norm(rows.numpy().astype(np.float64), axis=1)
    np.testing.assert_allclose(norms(rows).numpy(), wanted, rtol=1e-6)
    assert float(norm(rows[0])) == float(norms(rows)[0])


def test_a_row_that_is_not_finite_has_no_finite_norm():
    rows = torch.ones(3, 2000)
    rows[0, 7], rows[1, 1999] = torch.nan, torch.inf
    expected = [math.nan, math.inf, 2000**0.5]
    assert norms(rows).tolist() == pytest.approx(expected, nan_ok=True)


def test_products_of_long_rows_are_summed_in_float64():
    long = torch.full((1, 2**22), 1e-3)
    wanted = float(long.double().square().sum())
    assert products(long, long).item() == pytest.approx(wanted, rel=1e-5)
