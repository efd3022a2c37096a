"""Per-sample gradients and their features for models of sequences, against one backward pass a sample."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import member_context
from sequences import AT_ONCE, ONE_BY_ONE, RIGHT, TOKENS, Recurrent, Rows, Sorted, Steps, made, one_backward_a_sample, samples
from torch import nn

from fedbench.core import Batch, MemberData
from fedbench.core.numerics import gradients, layout, per_sample
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.layout import rows_are_samples
from fedbench.core.numerics.per_sample import per_sample_gradients, why_one_by_one
from fedbench.plugins.defenses.dp_sgd import DPSGD

T = 5


def updates_for(model: nn.Module) -> torch.Tensor:
    size = sum(p.numel() for p in model.parameters())
    return torch.randn(2, size, generator=torch.Generator().manual_seed(2), dtype=next(model.parameters()).dtype)


def require_right(model: nn.Module, x: torch.Tensor, y: torch.Tensor, chunk: int) -> list[int]:
    """The sizes of the batches that went the slow way."""
    slow, sizes, u = gradients._sample_wise, [], updates_for(model)
    with patch.object(gradients, "_sample_wise", lambda m, x, y, u: sizes.append(len(x)) or slow(m, x, y, u)):
        found = gradient_features(model, x, y, u, chunk)
    g = one_backward_a_sample(model, x, y)
    torch.testing.assert_close(found.dot, u @ g.T)
    torch.testing.assert_close(found.sq, (g * g).sum(1))
    return sizes


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("chunk", [1, T - 1, T, 2 * T, 512])
@pytest.mark.parametrize("name", RIGHT)
def test_features_are_right_whatever_the_chunk(name, chunk):
    x, y = samples(name, 2 * T + 1, T)
    slow = require_right(made(name), x, y, chunk)
    if chunk > 1:
        assert bool(slow) == (name not in AT_ONCE)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RIGHT)
def test_gradients_are_those_of_one_backward_a_sample(name, dtype):
    model, (x, y) = made(name, dtype), samples(name, 4, T, dtype)
    torch.testing.assert_close(per_sample_gradients(model, x, y), one_backward_a_sample(model, x, y))
    if dtype == torch.float64:  # oneDNN has a float32 LSTM that vmap can go through
        assert bool(why_one_by_one(model, training=False)) == (name in ONE_BY_ONE)


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(RIGHT)), n=st.integers(1, 9), steps=st.integers(2, 7), chunk=st.integers(1, 10))
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_features_of_any_shape(name, n, steps, chunk):
    x, y = samples(name, n, steps)
    require_right(made(name), x, y, chunk)


# --- the layer-wise way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, layout.SAMPLES, 7])
def test_the_layer_wise_way_is_taken_where_the_samples_are_first(steps):
    x, y = samples("rows", 14, steps)
    assert require_right(made("rows"), x, y, chunk=7) == []


def test_rows_moved_by_what_the_samples_hold_are_noticed_in_a_chunk_that_moves_none():
    x, y = samples("sorted", 12, T)
    x = x[x[:, 0, 0].argsort()]
    model = made("sorted")
    assert rows_are_samples(model, [m for m in model.modules() if m._parameters], x)  # a few samples in order cannot tell
    x[6:] = x[6:].flip(0)
    assert isinstance(model, Sorted) and require_right(model, x, y, chunk=6) == [6, 6]


def test_a_model_is_asked_about_its_layout_once():
    class Counting(Rows):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model, (x, y) = Counting().double(), samples("rows", 12, T)
    counts = []
    for _ in range(3):
        model.calls = 0
        gradient_features(model, x, y, updates_for(model), chunk=6)
        counts.append(model.calls)
    assert counts == [3, 2, 2]


@pytest.mark.parametrize("name", ["rows", "steps", "gru", "undecided"])
def test_asking_draws_nothing_and_leaves_the_model(name):
    class Noisy(nn.Module):
        """Draws in eval mode as well."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + 0 * torch.rand(1)

    model, (x, y) = Noisy(made(name)), samples(name, 6, T)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(3)
    gradient_features(model, x, y, updates_for(model), chunk=6)
    first = torch.get_rng_state()
    torch.manual_seed(3)
    gradient_features(model, x, y, updates_for(model), chunk=6)
    assert torch.equal(torch.get_rng_state(), first)  # asking the first time changed nothing
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("kind", [Steps, Rows])
def test_the_layout_does_not_depend_on_the_parameters(kind):
    """A layer that training has put to zero hides what lies before it."""
    model, (x, _) = kind().double(), samples("rows", 8, T)
    torch.nn.init.zeros_(model.head.weight)
    layers = [model.up, model.norm, model.head]
    assert rows_are_samples(model, layers, x) == (kind is Rows)


# --- one by one -----------------------------------------------------------------------------------------------------


class Dropped(Recurrent):
    """A recurrent layer behind dropout: its gradients depend on what is drawn."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training))


def test_vmap_is_tried_once_a_model_and_mode():
    model, (x, y) = Dropped(nn.GRU).double(), samples("gru", 3, T)
    with patch.object(per_sample, "_at_once", side_effect=per_sample._at_once) as tried:
        for mode in (True, True, False, False, True):
            per_sample_gradients(model.train(mode), x, y)
    assert tried.call_count == 2
    assert why_one_by_one(model, training=True).startswith(
        "per-sample gradients in training mode were taken one by one: vmap cannot go through the model (RuntimeError: "
    )
    assert why_one_by_one(made("rows"), training=False) == ""


def test_the_attempt_draws_nothing():
    model, (x, y) = Dropped(nn.GRU).double().train(), samples("gru", 3, T)
    found = []
    for _ in range(2):  # the second call knows
        torch.manual_seed(4)
        found.append((per_sample_gradients(model, x, y), torch.get_rng_state()))
    torch.manual_seed(4)
    torch.testing.assert_close(found[0][0], one_backward_a_sample(model, x, y))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_full_memory_is_no_reason_to_go_one_by_one():
    model, (x, y) = made("rows"), samples("rows", 3, T)
    full = patch.object(per_sample, "_at_once", side_effect=torch.OutOfMemoryError("full"))
    with full, pytest.raises(torch.OutOfMemoryError):
        per_sample_gradients(model, x, y)
    assert why_one_by_one(model, training=False) == ""


def test_where_no_way_leads_the_model_is_named_and_quoted():
    class Pairs(Rows):
        def forward(self, x):
            if len(x) % 2:
                raise ArithmeticError("pairs only")
            return super().forward(x)

    model, (x, y) = Pairs().double(), samples("rows", 4, T)
    with pytest.raises(RuntimeError, match="the model gives no gradient for a sample alone: ArithmeticError: pairs only"):
        per_sample_gradients(model, x, y)
    assert why_one_by_one(model, training=False) == ""


def test_recurrent_layers_in_eval_mode_keep_away_from_cudnn():
    """It has no backward pass there; everything else keeps it."""
    seen = []
    before = torch.backends.cudnn.enabled
    for model, device in ((made("gru"), "cuda"), (made("gru").train(), "cuda"), (made("rows"), "cuda"), (made("gru"), "cpu")):
        with per_sample._differentiable(model, torch.device(device)):
            seen.append(torch.backends.cudnn.enabled)
    assert seen == [False, before, before, before] and torch.backends.cudnn.enabled == before


def test_frozen_and_unused_parameters_one_by_one():
    class Spare(Recurrent):
        def __init__(self):
            super().__init__(nn.GRU)
            self.spare = nn.Linear(2, 2)

    model, (x, y) = Spare().double(), samples("gru", 3, T)
    model.layer.bias_hh_l0.requires_grad_(False)
    found = per_sample_gradients(model, x, y)
    torch.testing.assert_close(found, one_backward_a_sample(model, x, y))
    assert found.shape[1] == sum(p.numel() for p in model.parameters()) - model.layer.bias_hh_l0.numel()
    assert not found[:, -6:].any() and per_sample_gradients(model, x[:0], y[:0]).shape == (0, found.shape[1])


@pytest.mark.parametrize("name", sorted(ONE_BY_ONE - TOKENS))
def test_dp_sgd_clips_each_samples_gradient(name):
    model, (x, y) = made(name).train(), samples(name, 7, T)
    g = one_backward_a_sample(model, x, y)
    bound = float(g.norm(dim=1).median())
    expected = (g * (bound / g.norm(dim=1, keepdim=True)).clamp_max(1)).mean(0)
    ctx = member_context(model, MemberData(x, y))
    found = DPSGD(sigma=0, clip=bound).local_step(Batch(x, y, torch.arange(7)), ctx)
    torch.testing.assert_close(found, expected)
