"""Gradient features against `vmap(grad)` in float64: every layer kind, and the models that must not fool them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
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
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics import gradients as gradient
from fedbench.core.numerics import layers
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients

few = settings(max_examples=40, deadline=None)


def assert_matches_oracle(
    model: nn.Module, x: torch.Tensor, chunk: int = 512, fallbacks: Sequence[int] | None = ()
) -> None:
    """``fallbacks``: sizes of the batches that must have gone the slow way; None: any."""
    taken, slow = [], gradient._sample_wise
    y, u = labels(len(x)), randn(3, size_of(model), seed=2)
    with patch.object(gradient, "_sample_wise", lambda m, x, y, u: taken.append(len(x)) or slow(m, x, y, u)):
        found = gradient_features(model, x.clone(), y, u, chunk)
    if fallbacks is not None:
        assert taken == list(fallbacks)
    training = model.training
    g = per_sample_gradients(model.eval(), x.clone(), y)
    model.train(training)
    torch.testing.assert_close(found.dot, u @ g.T)
    torch.testing.assert_close(found.sq, (g * g).sum(1))
    torch.testing.assert_close(found.update_sq, (u * u).sum(1))


# --- the oracle itself ----------------------------------------------------------------------------------------------


def test_oracle_equals_one_backward_pass_a_sample():
    model = filled(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    x, y = randn(4, 3, 4), labels(4)
    for i, row in enumerate(per_sample_gradients(model, x, y)):
        grads = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in grads]))


def test_oracle_on_parameters_that_are_views_of_one_vector():
    model = filled(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    x, y = randn(6, 4), labels(6)
    before = per_sample_gradients(model, x, y)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(flat, model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(per_sample_gradients(model, x, y), before, rtol=0, atol=0)
        flat.mul_(2)  # the model follows its vector
        assert not torch.equal(per_sample_gradients(model, x, y), before)
    u = randn(2, len(flat))
    torch.testing.assert_close(gradient_features(model, x, y, u).dot, u @ per_sample_gradients(model, x, y).T)


def test_oracle_skips_frozen_parameters_and_takes_an_empty_batch():
    model = filled(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, CLASSES)))
    model[0].weight.requires_grad_(False)
    assert per_sample_gradients(model, randn(2, 4), labels(2)).shape == (2, 5 + 5 * CLASSES + CLASSES)
    assert per_sample_gradients(model, randn(0, 4), labels(0)).shape == (0, 5 + 5 * CLASSES + CLASSES)


# --- layer by layer -------------------------------------------------------------------------------------------------


@few
@given(n=st.integers(1, 5), rows=st.sampled_from([(), (1,), (3,), (2, 2)]), d=st.integers(1, 4), bias=st.booleans())
def test_linear(n, rows, d, bias):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(d, 4, bias=bias), nn.Linear(4, CLASSES, bias=bias)

        def forward(self, x):
            h = self.two(torch.tanh(self.one(x)))
            return h.flatten(1, -2).sum(1) if h.dim() > 2 else h

    assert_matches_oracle(filled(Net()), randn(n, *rows, d))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@few
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)), stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.sampled_from([(0, 0), (1, 1), (2, 0), "valid", "same"]), dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]), bias=st.booleans(), mode=st.sampled_from(["zeros", "reflect", "circular"]),
    n=st.integers(1, 4),
)  # fmt: skip
def test_conv2d(kernel, stride, padding, dilation, groups, bias, mode, n):
    if padding == "same":
        stride = (1, 1)
    conv = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups, bias, padding_mode=mode)
    assert_matches_oracle(filled(Flat(conv, 8)), randn(n, 4, 7, 6))


@few
@given(groups=st.sampled_from([1, 2, 4]), positions=st.sampled_from([(), (3,), (2, 3)]), affine=st.booleans())
def test_groupnorm(groups, positions, affine):
    x = randn(3, 4, *positions) if positions or groups < 4 else randn(3, 4, 2)
    assert_matches_oracle(filled(Flat(nn.GroupNorm(groups, 4, eps=0.1, affine=affine), 4)), x)


@few
@given(shape=st.sampled_from([(4,), (3, 4)]), positions=st.sampled_from([(), (2,), (2, 3)]), bias=st.booleans())
def test_layernorm(shape, positions, bias):
    model = Flat(nn.LayerNorm(shape, eps=0.1, bias=bias), 4, mean=False)
    assert_matches_oracle(filled(model), randn(3, *positions, *shape))


@few
@given(positions=st.sampled_from([(), (1,), (6,), (2, 3)]), padding=st.sampled_from([None, 0, 2]), n=st.integers(1, 4))
def test_embedding_with_repeated_and_padding_tokens(positions, padding, n):
    tokens = torch.randint(0, 5, (n, *positions), generator=torch.Generator().manual_seed(n))
    assert_matches_oracle(filled(Flat(nn.Embedding(5, 4, padding_idx=padding), 4, mean=False)), tokens)


@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.BatchNorm1d, (4,)), (nn.BatchNorm1d, (4, 3)), (nn.BatchNorm2d, (4, 2, 3))]
)
def test_batchnorm_uses_running_statistics(norm, shape):
    assert_matches_oracle(filled(Flat(norm(4, eps=0.1), 4)).train(), randn(3, *shape))


# --- whole models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_residual_cnn(chunk):
    assert_matches_oracle(cnn(), randn(7, 3, 8, 8), chunk=chunk)


def test_text_model():
    tokens = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(0))
    assert_matches_oracle(filled(TextNet()).train(), tokens)


@pytest.mark.parametrize("least", [1, 2])
def test_slicing_for_memory_does_not_change_the_result(least, monkeypatch):
    monkeypatch.setattr(layers, "BUDGET", {"cpu": 1})
    monkeypatch.setattr(layers, "LEAST", least)
    assert_matches_oracle(cnn(), randn(5, 3, 8, 8))
    tokens = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(0))
    assert_matches_oracle(filled(TextNet()), tokens)


@pytest.mark.parametrize("kind", ["linear", "rows", "conv", "group", "layer", "batch", "embedding"])
def test_in_place_activation_after_every_layer_kind(kind):
    layer, x = {
        "linear": (nn.Linear(4, 4), randn(3, 4)),
        "rows": (nn.Linear(4, 4), randn(3, 2, 4)),
        "conv": (nn.Conv2d(4, 4, 2), randn(3, 4, 3, 3)),
        "group": (nn.GroupNorm(2, 4), randn(3, 4, 3, 3)),
        "layer": (nn.LayerNorm(4), randn(3, 2, 4)),
        "batch": (nn.BatchNorm2d(4), randn(3, 4, 3, 3)),
        "embedding": (nn.Embedding(5, 4), torch.tensor([[0, 1], [2, 2], [4, 0]])),
    }[kind]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.relu, self.head = layer, nn.ReLU(inplace=True), nn.LazyLinear(CLASSES)

        def forward(self, x):
            return self.head(self.relu(self.layer(x)).flatten(1))

    model = Net().double()
    model(x)  # the lazy head takes its shape
    assert_matches_oracle(filled(model), x)


@pytest.mark.parametrize("frozen", [("0.weight",), ("0.bias",), ("0.weight", "0.bias"), ("2.weight", "2.bias")])
def test_frozen_parameters_are_left_out(frozen):
    first, second, head = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, CLASSES)
    model = filled(nn.Sequential(first, nn.ReLU(inplace=True), second, nn.Tanh(), head))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    assert_matches_oracle(model, randn(3, 4))


def test_no_update_and_no_sample():
    model = cnn()
    assert gradient_features(model, randn(2, 3, 8, 8), labels(2), randn(0, size_of(model))).dot.shape == (0, 2)
    found = gradient_features(model, randn(0, 3, 8, 8), labels(0), randn(2, size_of(model)))
    assert found.dot.shape == (2, 0) and found.sq.shape == (0,) and found.update_sq.shape == (2,)


def test_float32_stays_float32():
    model = cnn().float()
    found = gradient_features(model, randn(2, 3, 8, 8).float(), labels(2), randn(2, size_of(model)).float())
    assert {t.dtype for t in found} == {torch.float32}


# --- where the short cut would be wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [Twice(), Tied(), Borrowed(), Loose(), nn.Sequential(Scaled(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)), hooked(),
     nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, CLASSES)),
     nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, CLASSES))],
    ids=["called-twice", "tied", "borrowed-weight", "loose-parameter", "subclass", "foreign-hook", "weight-norm",
         "prelu"],
)  # fmt: skip
def test_falls_back_for(model):
    assert_matches_oracle(filled(model), randn(5, 4), chunk=2, fallbacks=[2, 2, 1])


def test_falls_back_for_samples_off_the_first_axis():
    assert_matches_oracle(filled(Regrouped()), randn(5, 3, 4), fallbacks=[5])


@pytest.mark.parametrize("model", [Overwritten(), Unused()], ids=["overwritten", "unused"])
def test_right_either_way(model):
    assert_matches_oracle(filled(model), randn(5, 4), fallbacks=None)


def test_falls_back_for_a_lost_hook(monkeypatch):
    monkeypatch.setitem(layers._HANDLERS, ViewLinear, layers.linear)
    model = filled(nn.Sequential(ViewLinear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, CLASSES)))
    assert_matches_oracle(model, randn(5, 4), fallbacks=[5])


def test_whoever_has_switched_gradients_off_gets_them_the_fast_way():
    """As every signal has: the engine asks it under ``no_grad``."""
    model = filled(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)))
    with torch.no_grad():
        assert_matches_oracle(model, randn(7, 1, 4, 4), fallbacks=())


def test_fallback_stays_within_its_memory(monkeypatch):
    model, seen = filled(Twice()), []
    slow = per_sample_gradients
    monkeypatch.setattr(gradient, "per_sample_gradients", lambda m, x, y: seen.append(len(x)) or slow(m, x, y))
    monkeypatch.setattr(gradient, "FALLBACK_BUDGET", 2 * size_of(model))
    assert_matches_oracle(model, randn(5, 4), fallbacks=[5])
    assert seen == [2, 2, 1]


# --- refusals and side effects --------------------------------------------------------------------------------------


def test_batch_statistics_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, CLASSES))
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\)"):
        gradient_features(filled(model), randn(3, 4), labels(3), randn(1, size_of(model)))
    with pytest.raises(ValueError, match="batch statistics"):
        per_sample_gradients(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES)).double(), randn(3, 4), labels(3))


def test_updates_of_the_wrong_size_are_refused():
    model = cnn()
    with pytest.raises(ValueError, match=f"the model has {size_of(model)} trainable parameters"):
        gradient_features(model, randn(2, 3, 8, 8), labels(2), randn(2, size_of(model) - 1))


@pytest.mark.parametrize("make", [cnn, lambda: filled(Loose())])
def test_the_model_is_left_as_found(make):
    model = make().train()
    next(iter(model.children())).eval()  # a mixed state must survive
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = randn(3, 3, 8, 8) if isinstance(model, nn.Sequential) else randn(3, 4)
    with torch.no_grad():
        gradient_features(model, x, labels(3), randn(1, size_of(model)))
        assert not torch.is_grad_enabled()
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_model_is_left_as_found_after_an_error():
    model = cnn().train()
    with pytest.raises(IndexError):
        gradient_features(model, randn(2, 3, 8, 8), labels(2) + CLASSES, randn(1, size_of(model)))
    assert model.training and not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("falls_back", [False, True])
def test_activations_are_freed_without_garbage_collection(falls_back, monkeypatch):
    class Watched(Twice):
        def forward(self, x):
            h = torch.tanh(self.inner(x))
            seen.append(weakref.ref(h))
            return self.head(torch.tanh(self.inner(h)) if falls_back else h)

    class WatchedTape(gradient._Tape):
        def __init__(self, *args):
            super().__init__(*args)
            seen.append(weakref.ref(self))

    seen: list[weakref.ref] = []
    monkeypatch.setattr(gradient, "_Tape", WatchedTape)
    model = filled(Watched())
    monkeypatch.setattr(gradient, "_sample_wise", lambda m, x, y, u: (u @ u.new_zeros(u.shape[1], len(x)), y.double()))
    gc.disable()
    try:
        gradient_features(model, randn(4, 4), labels(4), randn(1, size_of(model)), chunk=2)
        assert len(seen) >= 2 and all(ref() is None for ref in seen)
    finally:
        gc.enable()


def test_grad_diff_identity():
    """|u|^2 - |u - g|^2 = 2<u, g> - |g|^2: the features carry the Grad-Diff measure."""
    model, x = cnn(), randn(4, 3, 8, 8)
    u = randn(2, size_of(model))
    found = gradient_features(model, x, labels(4), u)
    g = per_sample_gradients(model, x, labels(4))
    direct = (u * u).sum(1, keepdim=True) - (u[:, None] - g[None]).square().sum(2)
    torch.testing.assert_close(2 * found.dot - found.sq, direct)
