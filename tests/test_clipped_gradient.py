"""The sum of clipped gradients against one backward pass a sample in float64: every layer kind, views, chunks, fallbacks."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layered import (
    CLASSES,
    Borrowed,
    Flat,
    Loose,
    Overwritten,
    Regrouped,
    Scaled,
    TextNet,
    Tied,
    Twice,
    Unused,
    ViewLinear,
    cnn,
    filled,
    hooked,
    labels,
    randn,
    size_of,
)
from parties import member_context
from sequences import AT_ONCE, RIGHT, made, one_backward_a_sample, samples
from torch import nn

from fedbench.core import Batch, MemberData
from fedbench.core.models.alexnet import AlexNet
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.leaf_cnn import LeafCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.models.resnet18 import ResNet18
from fedbench.core.numerics import clipped, layers, sums
from fedbench.core.numerics.clipped import clipped_gradient

few = settings(max_examples=40, deadline=None)
a_view = st.sampled_from([1, 2, 3])
BOUNDS = (1e-6, 0.5, 1.0, 1e9)  # times the median norm: all clipped to little, some clipped, none


def slow(model: nn.Module, x: torch.Tensor, y: torch.Tensor, views: int) -> torch.Tensor:
    """[n, P]: each sample's mean gradient over its views."""
    return one_backward_a_sample(model, x, y).unflatten(0, (-1, views)).mean(1)


def assert_matches(
    model: nn.Module, x: torch.Tensor, views: int = 1, chunk: int = 256, falls_back: bool = False, y: torch.Tensor | None = None
) -> None:
    """``x``: all rows. The slow way must have been taken if ``falls_back``, and not otherwise."""
    y = labels(len(x)) if y is None else y
    g = slow(model, x.clone(), y, views)
    lengths, taken, way = g.norm(dim=1), [], clipped._sample_wise
    for share in BOUNDS:
        bound = share * (float(lengths.median()) or 1.0)
        expected = (g * (bound / lengths).clamp_max(1)[:, None]).nan_to_num(0.0).sum(0)
        with patch.object(clipped, "_sample_wise", lambda *given: taken.append(1) or way(*given)):
            found = clipped_gradient(model, x.clone(), y, bound, views, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * share)
    assert bool(taken) == falls_back


# --- layer by layer -------------------------------------------------------------------------------------------------


@few
@given(
    n=st.integers(1, 5), rows=st.sampled_from([(), (1,), (3,), (2, 2)]), d=st.integers(1, 4), bias=st.booleans(), views=a_view,
    dear=st.sampled_from([0, sums.DEAR, 1e9]),
)  # fmt: skip
def test_linear(n, rows, d, bias, views, dear):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(d, 4, bias=bias), nn.Linear(4, CLASSES, bias=bias)

        def forward(self, x):
            h = self.two(torch.tanh(self.one(x)))
            return h.flatten(1, -2).sum(1) if h.dim() > 2 else h

    with patch.object(sums, "DEAR", dear):  # both ways to a norm
        assert_matches(filled(Net()), randn(n * views, *rows, d), views)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@few
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)), stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.sampled_from([(0, 0), (1, 1), (2, 0), "valid", "same"]), dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]), bias=st.booleans(), mode=st.sampled_from(["zeros", "reflect", "circular"]),
    n=st.integers(1, 4), views=a_view, dear=st.sampled_from([0, 1e9]), kept=st.sampled_from([1, sums.KEPT]),
)  # fmt: skip
def test_conv2d(kernel, stride, padding, dilation, groups, bias, mode, n, views, dear, kept):
    if padding == "same":
        stride = (1, 1)
    conv = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups, bias, padding_mode=mode)
    with patch.object(sums, "DEAR", dear), patch.object(sums, "KEPT", kept):
        assert_matches(filled(Flat(conv, 8)), randn(n * views, 4, 7, 6), views)


@pytest.mark.parametrize("groups", [1, 2])
def test_both_ways_to_the_weights_of_a_row_agree(groups):
    """The products of unfolded inputs are what another device than the CPU takes."""
    layer, a, b = nn.Conv2d(4, 6, (3, 2), (2, 1), groups=groups).double(), randn(3, 4, 7, 6), randn(3, 6, 3, 5, seed=2)
    products = (sums._positions(layer, b, 1).mT @ sums._columns(layer, a, 1)).reshape(3, -1)
    torch.testing.assert_close(sums.per_row_weights(layer, a, b), products)


@few
@given(
    groups=st.sampled_from([1, 2, 4]), positions=st.sampled_from([(), (3,), (2, 3)]), affine=st.booleans(), views=a_view
)  # fmt: skip
def test_groupnorm(groups, positions, affine, views):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.GroupNorm(groups, 4, eps=0.1, affine=affine), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.norm(x)).reshape(*x.shape[:2], -1).mean(2))

    x = randn(3 * views, 4, *positions) if positions or groups < 4 else randn(3 * views, 4, 2)
    assert_matches(filled(Net()), x, views)


@few
@given(shape=st.sampled_from([(4,), (3, 4)]), positions=st.sampled_from([(), (2,), (2, 3)]), bias=st.booleans(), views=a_view)
def test_layernorm(shape, positions, bias, views):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.LayerNorm(shape, eps=0.1, bias=bias), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.norm(x)).reshape(len(x), -1, 4).mean(1))

    assert_matches(filled(Net()), randn(3 * views, *positions, *shape), views)


@few
@given(
    positions=st.sampled_from([(), (1,), (6,), (2, 3)]), padding=st.sampled_from([None, 0, 2]), n=st.integers(1, 4), views=a_view
)  # fmt: skip
def test_embedding_with_repeated_and_padding_tokens(positions, padding, n, views):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4, padding_idx=padding), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x)).reshape(len(x), -1, 4).sum(1))

    tokens = torch.randint(0, 5, (n * views, *positions), generator=torch.Generator().manual_seed(n))
    assert_matches(filled(Net()), tokens, views)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.BatchNorm1d, (4,)), (nn.BatchNorm1d, (4, 3)), (nn.BatchNorm2d, (4, 2, 3))]
)  # fmt: skip
def test_batchnorm_with_running_statistics(norm, shape, views):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = norm(4, eps=0.1), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.norm(x)).reshape(*x.shape[:2], -1).mean(2))

    assert_matches(filled(Net()).eval(), randn(4, *shape), views)


# --- whole models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_a_residual_network_whatever_the_chunk(chunk, views):
    assert_matches(cnn().train(), randn(6, 3, 8, 8), views, chunk)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    ("model", "shape"),
    [(MLP(hidden=(6, 5)), (1, 3, 4)), (SmallCNN(channels=4, hidden=5), (3, 8, 8)), (LeafCNN(), (1, 4, 4)),
     (AlexNet(), (3, 13, 13)), (ResNet18(groups=2), (3, 8, 8))],
    ids=lambda given: type(given).__name__ if hasattr(given, "build") else "",
)  # fmt: skip
def test_built_in_models_in_training_mode(model, shape, views):
    torch.manual_seed(0)
    assert_matches(model.build(shape, CLASSES).double().train(), randn(4, *shape), views)


def test_a_model_of_tokens():
    tokens = torch.randint(0, 11, (6, 9), generator=torch.Generator().manual_seed(0))
    assert_matches(filled(TextNet()).eval(), tokens, 2)


def test_soft_targets():
    target = torch.softmax(randn(4, CLASSES, seed=3), 1)
    assert_matches(cnn(), randn(4, 3, 8, 8), y=target)
    assert_matches(filled(Twice()), randn(4, 4), 2, y=target, falls_back=True)


@pytest.mark.parametrize("frozen", [("0.weight",), ("0.bias",), ("0.weight", "0.bias"), ("2.weight", "2.bias")])
def test_frozen_parameters_are_left_out(frozen):
    first, second, head = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, CLASSES)
    model = filled(nn.Sequential(first, nn.ReLU(inplace=True), second, nn.Tanh(), head))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    assert_matches(model, randn(3, 4))


def test_a_sample_without_a_gradient_adds_nothing():
    model = filled(nn.Sequential(nn.Linear(4, CLASSES, bias=False)))
    x = randn(3, 4)
    x[1] = 0  # all of its gradient is b x^T
    assert_matches(model, x)
    assert not clipped_gradient(model, x[1:2], labels(1), 1.0).any()


def test_no_sample_is_no_gradient():
    for model, x in ((cnn(), randn(0, 3, 8, 8)), (filled(Twice()), randn(0, 4))):
        assert torch.equal(clipped_gradient(model, x, labels(0), 1.0, 2), torch.zeros(size_of(model), dtype=torch.float64))


# --- where the short cut would be wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [Twice(), Tied(), Borrowed(), Loose(), nn.Sequential(Scaled(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)), hooked(),
     nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, CLASSES)),
     nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, CLASSES))],
    ids=["called-twice", "tied", "borrowed-weight", "loose-parameter", "subclass", "foreign-hook", "weight-norm", "prelu"],
)  # fmt: skip
def test_falls_back_for(model):
    assert_matches(filled(model), randn(6, 4), 2, chunk=4, falls_back=True)


def test_falls_back_for_an_output_that_lost_its_place(monkeypatch):
    monkeypatch.setitem(layers._HANDLERS, ViewLinear, layers.linear)
    monkeypatch.setitem(sums.RULES, ViewLinear, sums.linear)
    model = filled(nn.Sequential(ViewLinear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, CLASSES)))
    with patch.object(clipped, "rows_are_samples", lambda *given: True):
        assert_matches(model, randn(5, 4), falls_back=True)


def test_falls_back_for_samples_off_the_first_axis():
    assert_matches(filled(Regrouped()), randn(5, 3, 4), falls_back=True)


@pytest.mark.parametrize("model", [Overwritten(), Unused()], ids=["overwritten", "unused"])
def test_right_either_way(model):
    g = slow(filled(model), randn(5, 4), labels(5), 1)
    bound = float(g.norm(dim=1).median())
    expected = (g * (bound / g.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)
    torch.testing.assert_close(clipped_gradient(model, randn(5, 4), labels(5), bound), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", RIGHT)
def test_models_of_sequences(name):
    x, y = samples(name, 8, 5)
    assert_matches(made(name), x, 2, chunk=4, y=y, falls_back=name not in AT_ONCE)


def test_the_slow_way_stays_within_its_memory(monkeypatch):
    model, seen, way = filled(Twice()), [], clipped.per_sample_gradients
    monkeypatch.setattr(clipped, "per_sample_gradients", lambda m, x, y: seen.append(len(x)) or way(m, x, y))
    monkeypatch.setattr(clipped, "FALLBACK_BUDGET", 4 * size_of(model))
    clipped_gradient(model, randn(10, 4), labels(10), 1.0, views=2)
    assert seen == [4, 4, 2]


# --- what a clipped gradient promises -------------------------------------------------------------------------------


@few
@given(size=st.sampled_from([1e-12, 1e-3, 1.0, 1e6, 1e18]), bound=st.sampled_from([1e-9, 1.0, 1e4]), views=a_view)
def test_one_sample_adds_its_norm_or_the_bound_in_float32(size, bound, views):
    """Inputs of any size: squares of float32 leave its range from 1e19 on, and below 1e-22."""
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, CLASSES)).float()
    x = size * randn(views, 300).float()
    y = model(x).argmin(1)  # the least likely label: its gradient does not vanish
    found = clipped_gradient(model, x, y, bound, views).double()
    length = float(slow(model.double(), x.double(), y, views).norm())
    assert float(found.norm()) == pytest.approx(min(length, bound), rel=1e-5)


def test_views_that_cancel_are_not_let_through():
    """Two views' gradients a thousand times longer than their mean: products in float32 would lose its norm."""
    model = nn.Linear(64, CLASSES, bias=False)
    with torch.no_grad():
        model.weight.zero_()  # equal probabilities: b is the same for the same label
    x = 1e3 * randn(2, 64).float()
    x[1] = -x[0] + 1e-2 * randn(64, seed=5).float()
    wanted = slow(model.double(), x.double(), torch.zeros(2, dtype=torch.int64), 2)
    bound = 0.5 * float(wanted.norm())
    with patch.object(sums, "DEAR", 0):
        found = clipped_gradient(model.float(), x, torch.zeros(2, dtype=torch.int64), bound, 2)
    assert float(found.double().norm()) == pytest.approx(bound, rel=0.05)


def test_a_gradient_of_eleven_million_entries_is_clipped_to_the_bound():
    model = nn.Linear(11_000_000 // 8, 8, bias=False)
    x = torch.randn(1, model.in_features, generator=torch.Generator().manual_seed(0))
    found = clipped_gradient(model, x, torch.zeros(1, dtype=torch.int64), 0.5)
    assert float(torch.linalg.vector_norm(found.double())) == pytest.approx(0.5, rel=1e-6)


def test_equal_calls_give_equal_bits():
    model, x = cnn().float(), randn(6, 3, 8, 8).float()
    assert torch.equal(*(clipped_gradient(model, x, labels(6), 0.1, 2) for _ in range(2)))


# --- random layers, side effects, refusals --------------------------------------------------------------------------


def dropping(head: nn.Module | None = None) -> nn.Module:
    """Half of the eight inputs of a linear layer without bias are dropped: its gradient shows which."""
    return filled(nn.Sequential(nn.Dropout(0.5), head or nn.Linear(8, CLASSES, bias=False))).train()


def test_each_sample_and_each_view_draws_its_own_mask():
    model, ones = dropping(), torch.ones(1, 8, dtype=torch.float64)
    torch.manual_seed(3)
    for n, views in ((400, 1), (400, 400)):
        found = clipped_gradient(model, ones.expand(n, 8), torch.zeros(n, dtype=torch.int64), 1e9, views)
        assert (found.view(CLASSES, 8)[0] != 0).all()  # one mask for all would leave half of the columns at zero


@pytest.mark.parametrize("falls_back", [False, True])
def test_a_model_that_draws_goes_on_from_where_it_was(falls_back):
    """An attempt that is given up takes no draw: the slow way sees the state that it would have seen alone."""
    model = dropping(Scaled(8, CLASSES, bias=False)) if falls_back else dropping()
    x, states = randn(4, 8), []
    for way in (clipped_gradient, lambda m, x, y, bound: clipped.per_sample_gradients(m, x, y)):
        torch.manual_seed(5)
        way(model, x, labels(4), 1.0)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Sometimes(Twice):
    """Draws a mask and calls its layer twice: found out only when it has run."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


def test_an_attempt_that_is_given_up_leaves_no_trace():
    model, x, found = filled(Sometimes()).train(), randn(4, 4), []
    for attempt in (True, False):
        torch.manual_seed(5)
        with patch.object(clipped, "rows_are_samples", lambda *given, attempt=attempt: attempt):
            found.append(clipped_gradient(model, x, labels(4), 1e9))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("make", [cnn, lambda: filled(Loose()), lambda: filled(Twice())])
def test_the_model_is_left_as_found(make):
    model = make().train()
    next(iter(model.children())).eval()  # a mixed state must survive
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x, before = randn(3, 3, 8, 8) if isinstance(model, nn.Sequential) else randn(3, 4), torch.get_rng_state()
    with torch.no_grad():
        found = clipped_gradient(model, x, labels(3), 1.0)
        assert not torch.is_grad_enabled()
    assert not found.requires_grad and torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_model_is_left_as_found_after_an_error():
    model = cnn().train()
    with pytest.raises(IndexError):
        clipped_gradient(model, randn(2, 3, 8, 8), labels(2) + CLASSES, 1.0)
    assert model.training and not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_that_bounds_nothing_is_refused(bound):
    with pytest.raises(ValueError, match="clipped to a positive norm"):
        clipped_gradient(cnn(), randn(2, 3, 8, 8), labels(2), bound)


@pytest.mark.parametrize("views", [0, 2])
def test_rows_that_are_no_whole_number_of_samples_are_refused(views):
    with pytest.raises(ValueError, match=f"3 rows are no whole number of samples with {views} views"):
        clipped_gradient(cnn(), randn(3, 3, 8, 8), labels(3), 1.0, views)


def test_batch_statistics_are_refused():
    model = filled(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))).train()
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\) normalises by batch statistics"):
        clipped_gradient(model, randn(3, 4), labels(3), 1.0)


def test_a_member_asks_its_context():
    model, x = cnn(), randn(4, 3, 8, 8)
    ctx, soft = member_context(model, MemberData(x, labels(4))), torch.softmax(randn(4, CLASSES), 1)
    batch = Batch(x, labels(4), torch.arange(4))
    assert torch.equal(ctx.clipped_gradient(batch, 0.5), clipped_gradient(model, x, labels(4), 0.5))
    assert torch.equal(ctx.clipped_gradient(batch, 0.5, views=2), clipped_gradient(model, x, labels(4), 0.5, 2))
    with_soft = Batch(x, labels(4), torch.arange(4), soft=soft)
    assert torch.equal(ctx.clipped_gradient(with_soft, 0.5), clipped_gradient(model, x, soft, 0.5))
