"""Each defense against a slow, obvious reference, in the contexts the engine gives it."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import facts_of, generator, member_context
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from fedbench.core import Batch, Federation, MemberContext, MemberData, ReportContext, UserError, norms
from fedbench.core.numerics.norms import clip_factors
from fedbench.plugins import defenses
from fedbench.plugins.defenses import dp_sgd, hamp
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.grad_sparse import GradSparse, sparsify
from fedbench.plugins.defenses.hamp import HAMP
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.relaxloss import RelaxLoss


def member(module: nn.Module | None = None, *, key=1, classes=4, epoch=0, **facts) -> MemberContext:
    module = module or nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, classes))
    known = facts_of(sum(p.numel() for p in module.parameters()), n_classes=classes, **facts)
    data = MemberData(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    return member_context(module, data, known, weights=7, key=key, epoch=epoch)


def batch(n: int, shape: tuple[int, ...] = (6,), classes: int = 4, seed: int = 0, dtype=torch.float32) -> Batch:
    g = generator(seed)
    x, y = torch.randn(n, *shape, generator=g, dtype=dtype), torch.randint(0, classes, (n,), generator=g)
    return Batch(x, y, torch.arange(n))


# -- announcements ---------------------------------------------------------------------------------------------------


def test_every_announced_defense_exists_and_documents_its_params():
    components = list(defenses.fedbench_defenses())
    names = [c.name for c in components]
    expected = [
        "none", "free-rider", "placebo", "grad-sparse", "grad-noise", "dp-sgd", "mixup", "relaxloss", "hamp", "cofedmid",
        "memguard", "perturb", "quantize", "data-augmentation", "data-sampling", "instahide",
        "fedavg", "server-dp", "top-k", "median", "trimmed-mean", "krum", "multi-krum", "fang", "deepsight", "atm",
        "norm-clipping", "geometric-median", "bulyan", "ifca", "ifca-mir", "local-only",
        "label-smoothing", "confidence-penalty", "weight-decay", "dropout",
        "membershield", "early-stopping", "kd", "adv-reg",
    ]  # fmt: skip
    assert sorted(names) == sorted(expected)
    for component in components:
        module, cls = component.target.split(":")
        defense = getattr(import_module(module), cls)()
        assert all(f.description for f in type(defense.params).model_fields.values()), component.name


# -- grad-sparse -----------------------------------------------------------------------------------------------------


def slow_sparsify(values: list[float], rate: float) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    removed = set(order[: math.floor(rate * len(values) + 1e-9)])
    return [0.0 if i in removed else v for i, v in enumerate(values)]


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=40), st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.9, 0.99]))
@settings(max_examples=100, deadline=None)
def test_sparsify_keeps_exactly_the_largest_ties_included(values, rate):
    kept = sparsify(torch.tensor(values, dtype=torch.float32), rate)
    assert kept.tolist() == slow_sparsify([float(v) for v in values], rate)


def test_grad_sparse_works_tensor_by_tensor_and_leaves_small_ones():
    ctx = member()  # tensors of 30, 5, 20, 4
    update = torch.randn(59, generator=generator(3)) * torch.cat([torch.full((30,), 100.0), torch.ones(29)])
    out = GradSparse(rate=0.5, min_elements=5).protect(update, ctx)
    w1, b1, w2, b2 = update.split([30, 5, 20, 4])
    expected = slow_sparsify(w1.tolist(), 0.5) + b1.tolist() + slow_sparsify(w2.tolist(), 0.5) + b2.tolist()
    assert torch.equal(out, torch.tensor(expected))


@pytest.mark.parametrize(("elements", "zeros"), [(1000, 0), (1001, 500)])
def test_grad_sparse_exempts_tensors_of_up_to_1000_elements(elements, zeros):
    ctx = member(nn.Linear(elements, 1, bias=False))
    out = GradSparse(rate=0.5).protect(torch.randn(elements, generator=generator(0)), ctx)
    assert int((out == 0).sum()) == zeros


# -- grad-noise ------------------------------------------------------------------------------------------------------


def test_grad_noise_has_the_stated_deviation_and_no_bias():
    update = torch.randn(40_000, generator=generator(0))
    noise = GradNoise(sigma=0.3).protect(update, member()) - update
    assert noise.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(noise.mean().item()) < 4 * 0.3 / 200


# -- dp-sgd ----------------------------------------------------------------------------------------------------------


def double_context(**kw) -> MemberContext:
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    return member(module, **kw)


def slow_clipped_mean(ctx: MemberContext, x: torch.Tensor, y: torch.Tensor, bound: float) -> tuple[torch.Tensor, list]:
    """Plain loop: one backward a sample, clip, average. ``x`` may hold several views: [B, views, ...]."""
    total, norms = torch.zeros_like(ctx.params), []
    parameters = list(ctx.model.parameters())
    for views, label in zip(x, y, strict=True):
        gradient = torch.zeros_like(ctx.params)
        for view in views:
            loss = cross_entropy(ctx.model(view[None]), label[None])
            gradient += torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]) / len(views)
        norms.append(gradient.norm().item())
        total += gradient * min(1.0, bound / norms[-1])
    return total / len(y), norms


def test_dp_sgd_equals_a_per_sample_loop():
    ctx, b = double_context(), batch(9, dtype=torch.float64)
    expected, norms = slow_clipped_mean(ctx, b.x[:, None], b.y, 2.0)
    assert min(norms) < 2.0 < max(norms)  # some are clipped, some are not
    torch.testing.assert_close(DPSGD(sigma=0, clip=2.0).local_step(b, ctx), expected, rtol=1e-10, atol=1e-12)


def test_dp_sgd_averages_the_views_of_a_sample_before_clipping():
    b = batch(5, (1, 2, 3), dtype=torch.float64)
    views = dp_sgd.random_views(b.x, 3, 1, True, double_context().generator).unflatten(0, (5, 3))
    ctx = double_context()
    expected, _ = slow_clipped_mean(ctx, views, b.y, 1.0)
    out = DPSGD(sigma=0, augment_multiplicity=3, shift=1, flip=True).local_step(b, ctx)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def test_views_are_shifts_and_mirrors_of_their_own_sample():
    x = torch.arange(1.0, 25.0).view(2, 2, 2, 3)
    views = dp_sgd.random_views(x, 300, 1, True, generator(0)).unflatten(0, (2, 300))
    for sample, found in zip(x, views, strict=True):
        padded = torch.nn.functional.pad(sample, (1, 1, 1, 1))
        crops = [padded[:, i : i + 2, j : j + 3] for i in range(3) for j in range(3)]
        allowed = {tuple(c.flatten().tolist()) for crop in crops for c in (crop, crop.flip(-1))}
        assert {tuple(v.flatten().tolist()) for v in found} == allowed


@pytest.mark.parametrize("size", [4, 32])
def test_dp_noise_on_the_mean_gradient_is_sigma_c_over_b(size):
    def step(sigma: float) -> torch.Tensor:
        ctx = member(nn.Linear(500, 20), classes=20)
        return DPSGD(sigma=sigma, clip=0.5).local_step(batch(size, (500,), 20), ctx)

    assert (step(2.0) - step(0.0)).std().item() == pytest.approx(2.0 * 0.5 / size, rel=0.05)


@given(st.floats(1e-3, 10), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_clipping_bounds_rows_and_leaves_short_ones(bound, seed):
    rows = torch.randn(6, 9, generator=generator(seed), dtype=torch.float64)
    rows[0] = 0
    out = clip_factors(norms(rows).square(), bound)[:, None] * rows
    assert (out.norm(dim=1) <= bound * (1 + 1e-9)).all()
    short = rows.norm(dim=1) <= bound
    assert torch.equal(out[short], rows[short])
    torch.testing.assert_close(torch.stack([dp_sgd.clip_to(r, bound) for r in rows]), out, rtol=1e-14, atol=0)


def test_one_sample_changes_the_noiseless_step_by_at_most_c_over_b():
    b = batch(6, dtype=torch.float64)
    other = replace(b, x=torch.cat([b.x[:5], 1e3 * b.x[5:]]))
    steps = [DPSGD(sigma=0, clip=0.1).local_step(each, double_context()) for each in (b, other)]
    assert (steps[0] - steps[1]).norm() <= 2 * 0.1 / 6 + 1e-12


def test_client_mode_clips_the_update_and_adds_noise_of_that_size():
    ctx = member()
    update = torch.ones(40_000)  # norm 200
    assert DPSGD(mode="client").local_step(batch(4), ctx) is None
    clipped = DPSGD(mode="client", sigma=0, clip_update=3.0).protect(update, ctx)
    torch.testing.assert_close(clipped, update * (3 / 200))
    assert torch.equal(DPSGD(mode="client", sigma=0, clip_update=300.0).protect(update, ctx), update)
    noise = DPSGD(mode="client", sigma=0.5, clip_update=3.0).protect(0 * update, ctx)
    assert noise.std().item() == pytest.approx(1.5, rel=0.02)
    assert torch.equal(DPSGD(sigma=0.5).protect(update, ctx), update)  # by example: nothing more at upload


def test_median_bound_uses_earlier_rounds_only():
    ctx, defense = member(), DPSGD(mode="client", sigma=0, clip_update="median")
    norms = [defense.protect(torch.full((4,), n / 2), ctx).norm().item() for n in (8.0, 20.0, 2.0, 100.0)]
    assert norms == pytest.approx([8, 8, 2, 8])  # own; median of 8; of 8, 20 (14, not reached); of 8, 20, 2


def test_augmentation_of_flat_samples_is_refused():
    with pytest.raises(UserError, match="augment_multiplicity"):
        DPSGD(augment_multiplicity=2).local_step(batch(4), member())


def test_dp_sgd_reports_its_epsilon_where_it_can_claim_one():
    def facts(**params):
        federation = Federation(clients=3, rounds=6, local_epochs=2, batch_size=5, participation=1.0, n_classes=3, n_params=9)
        ctx = ReportContext(federation=federation, members=(0,), coalition={}, of_member={}, of_server={})
        return DPSGD(**params).report(ctx)

    said = facts(sigma=2.0)
    assert said == {
        "epsilon": dp_sgd.epsilon(2.0, 12, 1e-5), "delta": 1e-5, "unit of privacy": "example", "noise multiplier": 2.0,
        "sampling": "shuffled", "accountant": "exact, Gaussian composition",
    }  # fmt: skip
    assert facts(sigma=0.0) == facts(sigma=2.0, mode="client") == {}


def test_epsilon_of_the_gaussian_mechanism():
    # Balle & Wang (ICML 2018): sigma = 1 needs epsilon 4.377 at delta 1e-5, against 4.84 of the classical bound.
    assert dp_sgd.epsilon(1.0, 1, 1e-5) == pytest.approx(4.3772, abs=1e-3)
    assert dp_sgd.epsilon(1.0, 16, 1e-5) == pytest.approx(dp_sgd.epsilon(0.25, 1, 1e-5), rel=1e-9)
    assert dp_sgd.epsilon(0.0, 1, 1e-5) == math.inf
    assert dp_sgd.epsilon(0.1, 120, 1e-5) > 6000 > dp_sgd.epsilon(0.11, 120, 1e-5)
    # At delta = total variation distance erf(mu / sqrt 8) nothing remains to be paid.
    assert dp_sgd.epsilon(1.0, 1, math.erf(1 / math.sqrt(8))) == pytest.approx(0, abs=1e-9)


# -- mixup -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["mixed", "unmixed"])
@pytest.mark.parametrize("alpha", [0.2, 5.0])
def test_mixup_is_the_two_label_loss_on_mixed_inputs(inputs, alpha):
    ctx, b = member(key=11), batch(8)
    mixed = Mixup(alpha=alpha, inputs=inputs).transform(b, ctx)
    twin = member(key=11)  # the same draws, by the same key
    keep, partner = twin.rng.beta(alpha, alpha), twin.randperm(8)
    x = keep * b.x + (1 - keep) * b.x[partner] if inputs == "mixed" else b.x
    logits = ctx.model(x)
    expected = keep * cross_entropy(logits, b.y) + (1 - keep) * cross_entropy(logits, b.y[partner])
    torch.testing.assert_close(Mixup().loss(ctx.model(mixed.x), mixed, ctx), expected)


def test_small_alpha_unmixed_is_label_noise_and_mixed_is_not():
    b, pairs = batch(6, classes=4), set()
    truth = {(tuple(x.tolist()), int(y)) for x, y in zip(b.x, b.y, strict=True)}
    wrong = {"mixed": 0, "unmixed": 0}
    for inputs in wrong:
        ctx = member(key=5)
        for _ in range(200):
            out = Mixup(alpha=1e-5, inputs=inputs).transform(b, ctx)
            pairs = {(tuple(x.tolist()), int(t.argmax())) for x, t in zip(out.x, out.soft, strict=True)}
            wrong[inputs] += not pairs <= truth
    assert wrong["mixed"] == 0
    assert 70 <= wrong["unmixed"] <= 130  # about every second batch


def test_large_alpha_mixes_half_and_half():
    out = Mixup(alpha=1e5).transform(batch(6), member())
    assert ((out.soft - 0.5).abs() < 0.01).logical_or((out.soft - 1).abs() < 0.01).logical_or(out.soft < 0.01).all()
    assert ((out.soft - 0.5).abs() < 0.01).any()


def test_tokens_cannot_be_mixed():
    with pytest.raises(UserError, match="tokens"):
        Mixup().transform(replace(batch(4), x=torch.zeros(4, 6, dtype=torch.int64)), member())


# -- relaxloss -------------------------------------------------------------------------------------------------------


def slow_relaxloss(logits, y, alpha: float, upper: float, odd: bool, detach: bool) -> torch.Tensor:
    losses, flattened = [], []
    for z, label in zip(logits, y.tolist(), strict=True):
        p = z.exp() / z.exp().sum()
        losses.append(-p[label].log())
        kept = p[label].detach() if detach else p[label]
        kept = kept if kept.item() <= upper else torch.tensor(upper, dtype=z.dtype)
        soft = -sum((kept if j == label else (1 - kept) / (len(z) - 1)) * p[j].log() for j in range(len(z)))
        flattened.append(-losses[-1] if int(p.argmax()) == label else soft - losses[-1])
    mean = sum(losses) / len(losses)
    if not odd:
        return abs(mean - alpha)
    return mean if mean.item() > alpha else sum(flattened) / len(flattened)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("upper", [1.0, 0.3])
@pytest.mark.parametrize(("epoch", "alpha"), [(0, 0.1), (0, 9.0), (1, 0.1), (1, 9.0), (4, 9.0), (7, 9.0)])
def test_relaxloss_branches_and_gradients_match_a_per_sample_reference(epoch, alpha, upper, detach):
    b, ctx = batch(10, classes=4), member(epoch=epoch)
    logits = (2 * torch.randn(10, 4, generator=generator(2), dtype=torch.float64)).requires_grad_()
    correct = logits.argmax(1) == b.y
    assert correct.any() and not correct.all()
    loss = RelaxLoss(alpha=alpha, upper=upper, detach=detach).loss(logits, b, ctx)
    expected = slow_relaxloss(logits, b.y, alpha, upper, epoch % 2 == 1, detach)
    torch.testing.assert_close(loss, expected)
    found, wanted = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(found, wanted)


def test_relaxloss_detaching_changes_the_gradient():
    b, logits = batch(10), torch.randn(10, 4, generator=generator(2)).requires_grad_()
    losses = [RelaxLoss(alpha=9, detach=detach).loss(logits, b, member(epoch=1)) for detach in (True, False)]
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in losses]
    assert not torch.allclose(*gradients)


@pytest.mark.parametrize(("local_epochs", "epoch", "odd_locally"), [(1, 3, False), (2, 3, True), (2, 4, False)])
def test_relaxloss_local_parity_restarts_every_round(local_epochs, epoch, odd_locally):
    b, logits = batch(10), torch.randn(10, 4, generator=generator(2))
    ctx = member(epoch=epoch, local_epochs=local_epochs)
    loss = RelaxLoss(alpha=9.0, parity="local").loss(logits, b, ctx)
    torch.testing.assert_close(loss, slow_relaxloss(logits, b.y, 9.0, 1.0, odd_locally, True))


# -- hamp ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "gamma", "p"),
    [(100, 0.5, 0.64), (10, 0.95, 0.26), (100, 0.8, 0.33), (100, 0.6, 0.54), (30, 0.5, 0.68), (200, 0.5, 0.62)],
)
def test_hamp_soft_label_probabilities_of_the_authors_settings(classes, gamma, p):
    assert hamp.true_class_probability(classes, gamma) == pytest.approx(p)


@given(st.integers(2, 300), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_hamp_soft_labels_are_distributions_of_enough_entropy_and_no_more(classes, gamma):
    soft = hamp.soft_labels(torch.tensor([1]), classes, gamma)[0].double().numpy()
    assert soft.sum() == pytest.approx(1, abs=1e-5)
    assert soft[1] >= soft.max() - 1e-6
    entropy = -sum(v * math.log(v) for v in soft if v > 0)
    assert entropy >= gamma * math.log(classes) - 1e-4
    p = hamp.true_class_probability(classes, gamma) + 0.01
    if p < 1:  # one step more confident is not enough entropy
        assert -p * math.log(p) - (1 - p) * math.log((1 - p) / (classes - 1)) < gamma * math.log(classes) + 1e-9


def test_hamp_loss_against_a_loop_and_its_reductions():
    b, ctx = batch(7), member()
    logits = torch.randn(7, 4, generator=generator(4), dtype=torch.float64)
    data = HAMP(gamma=0.6).prepare(MemberData(b.x, b.y), ctx)
    p, kl, entropy = logits.softmax(1).numpy(), 0.0, 0.0
    for i in range(7):
        q = data.soft[i].double().numpy()
        kl += float(np.sum(q * np.log(q / p[i]))) / 7
        entropy += float(-np.sum(p[i] * np.log(p[i]))) / 7
    soft_batch = replace(b, soft=data.soft)
    loss = HAMP(gamma=0.6, alpha=0.02).loss(logits, soft_batch, ctx)
    assert loss.item() == pytest.approx(kl - 4 * 0.02 * entropy, rel=1e-5)
    official = HAMP(gamma=0.6, alpha=0.02, reduction="mean").loss(logits, soft_batch, ctx)
    assert official.item() == pytest.approx(kl / 4 - 0.02 * entropy, rel=1e-5)  # the authors' N * C mean


def test_hamp_with_hard_labels_is_cross_entropy():
    b, logits = batch(7), torch.randn(7, 4, generator=generator(4))
    soft = HAMP(gamma=0).prepare(MemberData(b.x, b.y), member()).soft
    assert torch.equal(soft, one_hot(b.y, 4).float())
    loss = HAMP(gamma=0, alpha=0).loss(logits, replace(b, soft=soft), member())
    torch.testing.assert_close(loss, cross_entropy(logits, b.y))


# -- keyed randomness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda ctx: GradNoise().protect(torch.zeros(50), ctx),
        lambda ctx: DPSGD(sigma=1).local_step(batch(4), ctx),
        lambda ctx: DPSGD(mode="client").protect(torch.zeros(50), ctx),
        lambda ctx: Mixup(alpha=1).transform(batch(8), ctx).x,
        lambda ctx: dp_sgd.random_views(batch(8, (1, 4, 4)).x, 2, 2, True, ctx.generator),
    ],
    ids=["grad-noise", "dp-sgd", "dp-sgd-client", "mixup", "views"],
)
def test_equal_keys_equal_draws_other_keys_other_draws(draw):
    assert torch.equal(draw(member(key=3)), draw(member(key=3)))
    assert not torch.equal(draw(member(key=3)), draw(member(key=4)))
