"""Client defenses on losses, targets and uploads, each against a slow reference of its
definition.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from defense_cases import made, member, two_layers
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import generator
from pydantic import ValidationError
from tiny import tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from fedbench.core import Batch, Defense, MemberData, UserError
from fedbench.core.federation.compose import Composite
from fedbench.plugins.attacks.adaptive import soft_label

CLASSES, SIZES = 4, (30, 5, 20, 4)  # of two_layers()
seeds = st.integers(0, 2**20)


def batch(n=8, seed=0):
    g = generator(seed)
    return Batch(
        torch.randn(n, 6, generator=g, dtype=torch.float64),
        torch.randint(0, CLASSES, (n,), generator=g),
        torch.arange(n),
    )


def logits_of(n, seed=2):
    return (
        2 * torch.randn(n, CLASSES, generator=generator(seed), dtype=torch.float64)
    ).requires_grad_()


def uploads(defense, **changes):
    return torch.stack([r.uploads.updates for r in train_all(tiny_setup(defense, **changes))[1]])


# -- what is uploaded ------------------------------------------------------------------------------


def slow_sparse(values, rate):
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    removed = set(order[: math.floor(rate * len(values) + 1e-9)])
    return [0.0 if i in removed else v for i, v in enumerate(values)]


@given(seeds, st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.9, 0.99]), st.sampled_from([0, *SIZES]))
@settings(max_examples=25)
def test_grad_sparse_keeps_the_largest_entries_of_each_large_tensor(seed, rate, exempt):
    update = torch.randint(-9, 10, (sum(SIZES),), generator=generator(seed)).float()  # with ties
    update[: SIZES[0]] *= 100  # sizes differ between tensors
    found = made("grad-sparse", rate=rate, min_elements=exempt).protect(
        update, member(two_layers())
    )
    wanted = [
        p.tolist() if len(p) <= exempt else slow_sparse(p.tolist(), rate)
        for p in update.split(SIZES)
    ]
    assert found.tolist() == [v for part in wanted for v in part]


@pytest.mark.parametrize("name", ["perturb", "dp-sgd"])
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
@settings(max_examples=15)
def test_an_update_is_scaled_down_to_the_bound_and_no_further(name, bound, length):
    params = {"clip": bound} if name == "perturb" else {"mode": "client", "clip_update": bound}
    update = torch.randn(59, generator=generator(0), dtype=torch.float64)
    update *= length / update.norm()
    found = made(name, sigma=0, **params).protect(update, member(two_layers()))
    assert_close(found, update * min(1.0, bound / length))
    assert not made(name, sigma=0, **params).protect(0 * update, member(two_layers())).any()


@pytest.mark.parametrize(
    ("name", "params", "deviation"),
    [
        ("grad-noise", {"sigma": 0.3}, 0.3),
        ("perturb", {"sigma": 0.3, "clip": 4.0}, 0.3),
        ("perturb", {"sigma": 0.3, "clip": 4.0, "scale": "relative"}, 1.2),
        ("perturb", {"sigma": 0.3, "clip": "none"}, 0.3),
        ("dp-sgd", {"mode": "client", "sigma": 0.5, "clip_update": 3.0}, 1.5),
        ("dp-sgd", {"sigma": 0.5}, 0.0),
    ],
)
def test_noise_on_a_clipped_update_has_the_stated_deviation_and_no_bias(name, params, deviation):
    update = torch.ones(40_000)  # of norm 200
    quiet, noisy = (
        made(name, **{**params, **more}).protect(update, member(two_layers()))
        for more in ({"sigma": 0}, {})
    )
    assert (noisy - quiet).std().item() == pytest.approx(deviation, rel=0.02)
    assert abs((noisy - quiet).mean().item()) <= 4 * deviation / 200
    if name == "grad-noise" or params.get("clip") == "none":
        assert torch.equal(quiet, update)


def test_the_median_bound_of_client_level_dp_is_of_earlier_rounds():
    ctx, defense = (
        member(two_layers()),
        made("dp-sgd", mode="client", sigma=0, clip_update="median"),
    )
    lengths = [
        defense.protect(torch.full((4,), n / 2), ctx).norm().item() for n in (8.0, 20.0, 2.0, 100.0)
    ]
    # own; median of 8; of 8, 20 (14, not reached); of 8, 20, 2
    assert lengths == pytest.approx([8, 8, 2, 8])


def slow_quantize(values, bits, rounding):
    low, high = min(values), max(values)
    if rounding == "floor":
        edges = [low + (high - low) * j / 2**bits for j in range(2**bits)]
        return [max(e for e in edges if e <= v + 1e-12) for v in values]
    levels = [low + (high - low) * j / (2**bits - 1) for j in range(2**bits)]
    return [min(levels, key=lambda level: abs(level - v)) for v in values]


@given(seeds, st.integers(1, 6), st.sampled_from(["floor", "nearest"]))
@settings(max_examples=25)
def test_quantize_takes_the_bin_edge_or_the_nearest_level_tensor_by_tensor(seed, bits, rounding):
    update = torch.randn(sum(SIZES), generator=generator(seed), dtype=torch.float64)
    update[-SIZES[-1] :] = 0.7  # a constant tensor stays as it is
    found = made("quantize", bits=bits, rounding=rounding).protect(update, member(two_layers()))
    wanted = [slow_quantize(p.tolist(), bits, rounding) for p in update.split(SIZES)[:-1]]
    flat = torch.tensor([v for part in wanted for v in part], dtype=torch.float64)
    assert_close(found[: -SIZES[-1]], flat)
    assert torch.equal(found[-SIZES[-1] :], update[-SIZES[-1] :])


def test_stochastic_quantization_is_unbiased_between_neighbouring_levels():
    values = torch.tensor([0.0, 0.3, 0.5, 1.0]).repeat(20_000)
    ctx = member(nn.Linear(len(values), 1, bias=False))
    found = made("quantize", bits=2, rounding="stochastic").protect(values, ctx)
    assert_close(found.unique(), torch.tensor([0, 1 / 3, 2 / 3, 1]))
    assert (found - values).abs().max() < 1 / 3
    assert_close(found.view(-1, 4).mean(0), values[:4], atol=0.02, rtol=0)


def test_quantize_does_not_hide_a_diverged_update():
    update = torch.ones(sum(SIZES))
    update[3] = math.nan
    assert not torch.isfinite(made("quantize").protect(update, member(two_layers()))).all()


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["mixed", "unmixed"])
def test_mixup_is_the_two_label_loss_on_mixed_inputs(inputs):
    ctx, b, defense = (
        member(two_layers().double(), key=11),
        batch(8),
        made("mixup", alpha=0.2, inputs=inputs),
    )
    mixed = defense.transform(b, ctx)
    twin = member(two_layers(), key=11)  # the same draws, by the same key
    keep, partner = twin.rng.beta(0.2, 0.2), twin.randperm(8)
    x = keep * b.x + (1 - keep) * b.x[partner] if inputs == "mixed" else b.x
    logits = ctx.model(x)
    expected = keep * cross_entropy(logits, b.y) + (1 - keep) * cross_entropy(logits, b.y[partner])
    assert_close(defense.loss(ctx.model(mixed.x), mixed, ctx), expected)


@given(seeds, st.floats(0, 0.99))
@settings(max_examples=15)
def test_label_smoothing_mixes_targets_with_the_uniform_distribution(seed, strength):
    ctx, b, defense = (
        member(two_layers().double()),
        batch(seed=seed),
        made("label-smoothing", strength=strength),
    )
    smoothed = defense.transform(b, ctx)
    logits = ctx.model(b.x)
    assert_close(
        defense.loss(logits, smoothed, ctx), cross_entropy(logits, b.y, label_smoothing=strength)
    )


@pytest.mark.parametrize(
    ("classes", "gamma", "p"), [(100, 0.5, 0.64), (10, 0.95, 0.26), (4, 0.0, 1.0)]
)
def test_hamp_soft_labels_are_those_of_the_authors(classes, gamma, p):
    ctx = member(two_layers(), classes=classes)
    found = (
        made("hamp", gamma=gamma)
        .prepare(MemberData(torch.zeros(1, 6), torch.tensor([1])), ctx)
        .soft[0]
    )
    assert found.tolist() == pytest.approx(
        [p if c == 1 else (1 - p) / (classes - 1) for c in range(classes)], abs=1e-6
    )


@pytest.mark.parametrize("order", [("membershield", "hamp"), ("hamp", "membershield")])
def test_soft_labels_of_a_stack_are_those_that_the_adaptive_attack_expects(order):
    """Either order: hamp's labels act on those of the defense before it."""
    params = {
        "membershield": {"theta": 0.5, "validation": 0.5},
        "hamp": {"gamma": 0.5, "alpha": 0.0},
    }
    ctx = member(two_layers())
    data = MemberData(torch.zeros(20, 6), torch.arange(20) % 4)
    for name in order:
        data = made(name, **params[name]).prepare(data, ctx)
    share, _ = soft_label(params, 4)
    assert_close(data.soft, (1 - share) * one_hot(data.y, 4) + share / 4)


# -- losses ----------------------------------------------------------------------------------------


@given(seeds)
@settings(max_examples=10)
def test_hamp_loss_is_the_divergence_minus_the_entropy(seed):
    b, ctx, logits = batch(7, seed), member(two_layers()), logits_of(7, seed)
    params = {"gamma": 0.6, "alpha": 0.02}
    soft = made("hamp", **params).prepare(MemberData(b.x, b.y), ctx).soft
    p, q = logits.detach().softmax(1).numpy(), soft.double().numpy()
    kl, entropy = (q * np.log(q / p)).sum() / 7, -(p * np.log(p)).sum() / 7
    b = replace(b, soft=soft)
    assert made("hamp", **params).loss(logits, b, ctx).item() == pytest.approx(
        kl - 4 * 0.02 * entropy, rel=1e-5
    )
    released = made("hamp", reduction="mean", **params).loss(logits, b, ctx).item()
    # the mean over samples and classes
    assert released == pytest.approx(kl / 4 - 0.02 * entropy, rel=1e-5)


def slow_relaxloss(logits, y, alpha, upper, odd, detach):
    losses, flattened = [], []
    for z, label in zip(logits, y.tolist(), strict=True):
        p = z.exp() / z.exp().sum()
        losses.append(-p[label].log())
        kept = p[label].detach() if detach else p[label]
        kept = kept if kept.item() <= upper else torch.tensor(upper, dtype=z.dtype)
        soft = -sum(
            (kept if j == label else (1 - kept) / (len(z) - 1)) * p[j].log() for j in range(len(z))
        )
        flattened.append(-losses[-1] if int(p.argmax()) == label else soft - losses[-1])
    mean = sum(losses) / len(losses)
    if not odd:
        return abs(mean - alpha)
    return mean if mean.item() > alpha else sum(flattened) / len(flattened)


@pytest.mark.parametrize("detach", [True, False])
@given(
    seeds,
    st.integers(0, 7),
    st.sampled_from([0.1, 9.0]),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from(["global", "local"]),
    st.integers(1, 3),
)
@settings(max_examples=25)
def test_relaxloss_and_its_gradient_match_a_per_sample_reference(
    detach, seed, epoch, alpha, upper, parity, local_epochs
):
    b, ctx, logits = (
        batch(6, seed),
        member(two_layers(), epoch=epoch, facts={"local_epochs": local_epochs}),
        logits_of(6, seed),
    )
    loss = made("relaxloss", alpha=alpha, upper=upper, detach=detach, parity=parity).loss(
        logits, b, ctx
    )
    odd = (epoch if parity == "global" else epoch % local_epochs) % 2 == 1
    expected = slow_relaxloss(logits, b.y, alpha, upper, odd, detach)
    assert_close(loss, expected)
    found, wanted = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    assert_close(found, wanted)


def test_the_gradient_of_the_confidence_penalty_is_the_papers():
    ctx, b, beta, logits = member(two_layers()), batch(), 0.7, logits_of(8)
    defense = made("confidence-penalty", strength=beta)
    defense.loss(logits, b, ctx).backward()
    p = logits.detach().softmax(1).numpy()
    entropy = -(p * np.log(p)).sum(1, keepdims=True)
    # Pereyra et al., section 3: dH/dz_i = p_i (-log p_i - H)
    expected = (p - np.eye(CLASSES)[b.y.numpy()] - beta * p * (-np.log(p) - entropy)) / 8
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-9, atol=1e-12)


def three_layers():
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES)
    ).double()


LAST = [(2, [2, 4]), ("all", [0, 2, 4])]  # the last linear layers of three_layers()


@pytest.mark.parametrize(("layers", "decayed"), LAST)
def test_the_gradient_of_weight_decay_is_two_lambda_w_on_the_last_layers(layers, decayed):
    ctx, b = member(three_layers()), batch()
    decay, plain = (
        ctx.gradient(d.loss(ctx.model(b.x), b, ctx))
        for d in (made("weight-decay", strength=0.3, layers=layers), Defense())
    )
    expected = torch.cat(
        [
            (0.6 * p if name.endswith("weight") and int(name[0]) in decayed else 0 * p)
            .detach()
            .reshape(-1)
            for name, p in ctx.model.named_parameters()
        ]
    )
    assert_close(decay - plain, expected, rtol=1e-9, atol=1e-12)


# -- dropout ---------------------------------------------------------------------------------------


class OneEpoch:
    """A local training of one epoch that calls ``run``."""

    def __init__(self, run):
        self.run = run

    def epochs(self):
        self.run()
        yield 0


def layer_inputs(run, module, **params):
    """What each linear layer is given in the last pass of ``run``, under dropout."""
    seen = {}
    hooks = [
        module[i].register_forward_hook(lambda _, x, y, i=i: seen.update({i: x[0].detach()}))
        for i in (0, 2, 4)
    ]
    made("dropout", **params).local_train(member(module, training=OneEpoch(run)))
    for hook in hooks:
        hook.remove()
    assert not any(layer._forward_pre_hooks for layer in module)  # dropout leaves nothing behind
    return seen


@pytest.mark.parametrize(("layers", "reached"), LAST)
def test_dropout_zeroes_its_share_before_the_last_layers_and_divides_the_others(layers, reached):
    module, x = three_layers(), batch(3000).x
    found = layer_inputs(lambda: module.train()(x), module, rate=0.25, layers=layers)
    for i in (0, 2, 4):
        if i not in reached:
            assert found[i].all()
            continue
        assert (found[i] == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    first = found[min(reached)]  # what comes before it is not changed
    plain = module[: min(reached)](x)
    assert_close(first[first != 0], plain[first != 0] / 0.75)


def test_dropout_does_nothing_in_eval_mode_and_masks_each_step_anew_from_the_members_generator():
    module, b = three_layers(), batch(4)

    def outputs(mode, torchs_seed=0):
        found = []
        torch.manual_seed(torchs_seed)
        layer_inputs(
            lambda: found.extend(module.train(mode)(b.x).detach() for _ in range(2)),
            module,
            rate=0.5,
        )
        return found

    assert all(torch.equal(out, module(b.x)) for out in outputs(False))
    first, second = outputs(True)
    assert not torch.equal(first, second) and not torch.equal(first, module(b.x))
    assert torch.equal(outputs(True, 1)[0], first)


# -- together, and refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda: uploads(made("dropout"), module=nn.BatchNorm1d(4)),
            r"client 0, round 1\): dropout .* has none: choose another",
        ),
        (
            lambda: uploads(made("weight-decay", layers=3)),
            "weight-decay .* has only 2: use layers: 2",
        ),
        (
            lambda: uploads(Composite([made("label-smoothing"), made("dp-sgd")])),
            "dp-sgd works on hard labels",
        ),
        (
            lambda: made("mixup").transform(
                replace(batch(4), x=torch.zeros(4, 6).long()), member(two_layers())
            ),
            "tokens",
        ),
        (
            lambda: made("dp-sgd", augment_multiplicity=2).local_step(
                batch(4), member(two_layers().double())
            ),
            "augment_multiplicity",
        ),
    ],
)
def test_what_a_defense_cannot_do_is_refused_by_name(refused, says):
    with pytest.raises((UserError, ValidationError), match=says):
        refused()
