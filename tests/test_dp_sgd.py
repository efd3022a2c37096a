"""DP-SGD: its steps against a loop over samples, what noise a target epsilon asks for, and what is
claimed of it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from defense_cases import installed, made, member, two_layers
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    rdp,
)
from parties import facts_of, generator
from pydantic import ValidationError
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from tiny import normed, tiny_clients, tiny_setup, train_all
from torch.nn.functional import cross_entropy, pad

from fedbench.core import Batch, Defense, MemberData, UserError
from fedbench.core.federation.compose import Composite
from fedbench.plugins.defenses.dp_accounting import Steps, epsilon, epsilon_after, noise_for
from fedbench.plugins.defenses.dp_sgd import random_views

# -- the step --------------------------------------------------------------------------------------


def images(n):
    g = generator(0)
    x = torch.randn(n, 1, 2, 3, generator=g, dtype=torch.float64)
    return Batch(x, torch.randint(0, 4, (n,), generator=g), torch.arange(n))


def context():
    """A member of 40 samples, of which every batch is expected to hold 8, in 10 rounds of 2
    epochs.
    """
    data = MemberData(torch.zeros(40, 6), torch.zeros(40, dtype=torch.int64))
    return member(two_layers().double(), data, facts={"local_epochs": 2})


def gradient(ctx, x, y):
    return torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(
                cross_entropy(ctx.model(x), y), list(ctx.model.parameters())
            )
        ]
    )


def clipped(row, bound):
    return row * min(1.0, bound / float(row.norm()))


POISSON, BATCH = {"sampling": "poisson"}, {"clip_unit": "batch"}


@pytest.mark.parametrize(
    ("n", "params"),
    [
        (3, {"clip": 1e-3, "rate": 4.0}),
        (9, {"epsilon": 2.0}),
        (9, {"epsilon": 2.0, "accountant": "rdp", **POISSON}),
        (9, {"augment_multiplicity": 3, "shift": 1, "flip": True}),
        (0, POISSON),
        (3, {**BATCH, "augment_multiplicity": 2}),
    ],
)
def test_a_step_clips_each_samples_gradient_and_adds_noise_of_that_size(params, n):
    b, ctx, clip, rate = images(n), context(), params.get("clip", 1.5), params.get("rate", 1.0)
    steps = Steps(10 * 2 * 5, 8 / 40, "rdp") if "accountant" in params else Steps(10 * 2)
    # for all rounds, epochs and batches of the context
    sigma = noise_for(2.0, steps, 1e-5) if "epsilon" in params else 0.7
    noised = {} if "epsilon" in params else {"sigma": 0.7}
    found = made("dp-sgd", **{"clip": clip, **noised, **params}).local_step(b, ctx)
    # the same draws, by the same key
    twin, views = context(), params.get("augment_multiplicity", 1)
    moves = params.get("shift", 4), params.get("flip", False)
    x = b.x if views == 1 or n == 0 else random_views(b.x, views, *moves, twin.generator)
    y = b.y.repeat_interleave(views)
    if params.get("clip_unit") == "batch":
        expected, size = clipped(gradient(twin, x, y), clip) if n else torch.zeros(59), 1
    else:
        rows = [gradient(twin, x[i : i + views], y[i : i + views]) for i in range(0, len(y), views)]
        expected, size = (
            sum((clipped(r, clip) for r in rows), torch.zeros(59)),
            8 if "sampling" in params else n,
        )
        if n == 9:
            # some are clipped, some are not
            assert min(r.norm() for r in rows) < clip < max(r.norm() for r in rows)
    noise = sigma * clip * twin.randn_like(twin.params)
    torch.testing.assert_close(
        found, rate * (expected + noise) / size, rtol=1e-9, atol=1e-12, check_dtype=False
    )


def test_views_are_shifts_and_mirrors_of_their_own_sample():
    x = torch.arange(1.0, 25.0).view(2, 2, 2, 3)
    views = random_views(x, 300, 1, True, generator(0)).unflatten(0, (2, 300))
    for sample, found in zip(x, views, strict=True):
        crops = [
            pad(sample, (1, 1, 1, 1))[:, i : i + 2, j : j + 3] for i in range(3) for j in range(3)
        ]
        allowed = {tuple(c.flatten().tolist()) for crop in crops for c in (crop, crop.flip(-1))}
        assert {tuple(v.flatten().tolist()) for v in found} == allowed


# -- epsilon ---------------------------------------------------------------------------------------


def phi(x):
    return torch.special.ndtr(torch.as_tensor(x, dtype=torch.float64))


def composed_epsilon(sigma, rate, doublings, delta, replaced, up):
    """Epsilon of 2**doublings sampled steps, by convolution of losses rounded to a grid: up, a
    bound from above, or down.
    """
    width = 5e-4
    edges = torch.linspace(-9 * sigma - 1, 9 * sigma + 1, 200_001, dtype=torch.float64)

    def cells(center):
        low, high = (edges[:-1] - center) / sigma, (edges[1:] - center) / sigma
        # exact in both tails
        return torch.where(low > 0, phi(-low) - phi(-high), phi(high) - phi(low))

    def log_ratio(other):  # of the mixture with a part at ``other``, to the density at 0
        return torch.log1p(rate * torch.expm1((other * edges - other**2 / 2) / sigma**2))

    mixture, plain = (1 - rate) * cells(0) + rate * cells(1), cells(0)
    loss = log_ratio(1) - log_ratio(-1) if replaced else log_ratio(1)
    epsilons = []
    for mass, losses in [(mixture, loss)] if replaced else [(mixture, loss), (plain, -loss)]:
        ends = torch.stack([losses[:-1], losses[1:]])
        rounded = (ends.amax(0) / width).ceil() if up else (ends.amin(0) / width).floor()
        first = int(rounded.min())
        pmf = torch.bincount(rounded.long() - first, mass).numpy()
        for _ in range(doublings):
            pmf, first = fftconvolve(pmf, pmf), 2 * first
        total = width * (first + np.arange(len(pmf)))

        def excess(eps, pmf=pmf, total=total):
            return float((pmf * -np.expm1(np.minimum(0, eps - total))).sum()) - delta

        epsilons.append(brentq(excess, 0, 50))
    return max(epsilons)


def test_epsilon_of_the_gaussian_mechanism():
    # Balle & Wang (ICML 2018): sigma = 1 needs epsilon 4.377 at delta 1e-5, against 4.84 of the
    # classical bound.
    assert epsilon(1.0, 1, 1e-5) == pytest.approx(4.3772, abs=1e-3)
    assert epsilon(1.0, 16, 1e-5) == pytest.approx(epsilon(0.25, 1, 1e-5), rel=1e-9)
    assert epsilon(0.0, 1, 1e-5) == math.inf and epsilon(0.1, 120, 1e-5) > 6000 > epsilon(
        0.11, 120, 1e-5
    )
    # At delta = total variation distance erf(mu / sqrt 8) nothing remains to be paid.
    assert epsilon(1.0, 1, math.erf(1 / math.sqrt(8))) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("accountant", "grid"),
    [
        ("rdp", (0.5, 8.0)),
        pytest.param(
            "prv",
            (0.1, 0.5, 1.0, 8.0, 100.0, 1000.0),
            marks=[pytest.mark.slow, pytest.mark.nightly],
        ),
    ],
)
def test_noise_reaches_its_epsilon_barely_and_less_epsilon_asks_for_more(accountant, grid):
    steps = Steps(500, 0.1, accountant)
    sigmas = [noise_for(target, steps, 1e-6) for target in grid]
    assert sigmas == sorted(set(sigmas), reverse=True)
    spent = [epsilon_after(sigma, steps, 1e-6) for sigma in sigmas]
    assert all(
        0.99 * target < found <= target * (1 + 1e-9)
        for target, found in zip(grid, spent, strict=True)
    )


@pytest.mark.parametrize("sigma", [0.05, 0.7, 40.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_epsilon_is_the_analytic_one_without_sampling(sigma, delta):
    mu, eps = math.sqrt(30) / sigma, epsilon(sigma, 30, delta)
    upper, lower = torch.special.log_ndtr(
        torch.tensor([mu / 2, -mu / 2], dtype=torch.float64) - eps / mu
    )
    assert float(upper.exp() - (eps + lower).exp()) == pytest.approx(delta, rel=1e-6)
    for replaced in (False, True):
        closed = epsilon(sigma / (1 + replaced), 30, delta)
        assert (
            closed * 0.999 < epsilon_after(sigma, Steps(30, 1.0, "prv"), delta, replaced) <= closed
        )
    assert eps < epsilon_after(sigma, Steps(30, 1.0, "rdp"), delta) < 1.2 * eps + 0.1


@pytest.mark.parametrize(
    ("sigma", "rate", "delta"), [(1.0, 0.1, 1e-5), (0.6, 0.02, 1e-6), (4.0, 0.5, 1e-8)]
)
@pytest.mark.parametrize("replaced", [False, True])
def test_epsilon_of_sampled_batches_is_a_bound_within_one_percent_of_the_least_possible(
    sigma, rate, delta, replaced
):
    low, high = (composed_epsilon(sigma, rate, 4, delta, replaced, up) for up in (False, True))
    found = epsilon_after(sigma, Steps(16, rate, "prv"), delta, replaced)
    assert low <= found <= high * 1.002 and high < low * 1.01
    assert epsilon_after(sigma, Steps(16, rate, "rdp"), delta) > epsilon_after(
        sigma, Steps(16, rate, "prv"), delta
    )


def test_below_what_float64_holds_prv_is_rdp_and_a_replacement_gaussian_composition():
    for delta in (1e-11, 1e-16, 1e-30):
        prv, rdp = (epsilon_after(1.0, Steps(300, 0.1, name), delta) for name in ("prv", "rdp"))
        assert prv == rdp > epsilon_after(1.0, Steps(300, 0.1, "prv"), 1e-10)
        assert epsilon_after(1.0, Steps(300, 0.1, "prv"), delta, replaced=True) == epsilon(
            0.5, 300, delta
        )


# -- what is claimed -------------------------------------------------------------------------------


class Twice(Defense):
    """Trains two passes a round."""

    private = ()

    def local_train(self, ctx):
        ctx.train()
        ctx.train()


def claims(*defenses, **changes):
    return dict(train_all(tiny_setup(Composite(list(defenses)), **changes))[0].facts())


def test_a_target_is_what_is_claimed_with_noise_of_its_own_for_every_member():
    clients = tiny_clients(clients=2, samples=12) + tiny_clients(clients=1, samples=30)
    ours = {"clients": clients, "members": (0, 2)}
    said = claims(made("dp-sgd", epsilon=8.0, sampling="poisson", accountant="rdp"), **ours)
    steps = [Steps(3 * 2 * batches, 5 / n, "rdp") for n, batches in ((12, 3), (30, 6))]
    sigmas = [noise_for(8.0, each, 1e-5) for each in steps]
    replaced = [epsilon_after(*pair, 1e-5, True) for pair in zip(sigmas, steps, strict=True)]
    assert said == {
        "epsilon": 8.0,
        "delta": 1e-5,
        "unit of privacy": "example",
        "noise multiplier": sigmas,
        "sampling": "poisson",
        "neighbours": "example without its gradient (if replaced: another example)",
        "accountant": "RDP of dp-accounting (if replaced: PLD of dp-accounting), upper bound",
        "epsilon if replaced": max(replaced),
    }
    sigma = noise_for(8.0, Steps(6), 0.01)
    assert claims(made("dp-sgd", epsilon=8.0, delta=0.01), participation=0.75, **ours) == {
        "epsilon": 8.0,
        "delta": 0.01,
        "unit of privacy": "example",
        "noise multiplier": sigma,
        "sampling": "shuffled",
        "accountant": "Gaussian composition, upper bound",
        "delta times samples": 0.3,
        "neighbours": "example without its gradient (if replaced: another example)",
        "epsilon if replaced": pytest.approx(epsilon(sigma / 2, 6, 0.01)),
    }


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_more_passes_than_planned_cost_more_than_the_target(sampling):
    said = claims(Twice(), made("dp-sgd", sampling=sampling, accountant="rdp", epsilon=2.0))
    # clients of 12 samples, batches of 5
    steps = Steps(12) if sampling == "shuffled" else Steps(36, 5 / 12, "rdp")
    assert said["epsilon"] == pytest.approx(
        epsilon_after(said["noise multiplier"], steps, 1e-5), rel=1e-9
    )


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_steps_that_another_defense_leaves_out_cost_nothing_where_batches_are_sampled(sampling):
    params = {"sampling": sampling, "accountant": "rdp", "sigma": 1.0}
    less = claims(made("data-sampling", fraction=0.7), made("dp-sgd", **params), participation=0.75)
    # clients of 12 samples, batches of 5: two of three are taken in each of six epochs
    steps = Steps(6) if sampling == "shuffled" else Steps(12, 5 / 12, "rdp")
    assert less["epsilon"] == epsilon_after(1.0, steps, 1e-5)
    alone = claims(made("dp-sgd", **params), participation=0.75)
    assert (less["epsilon"] < alone["epsilon"]) == (sampling == "poisson")


@pytest.mark.parametrize(
    ("params", "name", "claimed", "sigma"),
    [
        (
            {"epsilon": 4.0, "account": "one-round"},
            "claimed epsilon (one round)",
            4.0,
            noise_for(4.0, Steps(2), 1e-5),
        ),
        (
            {"epsilon": 4.0, "clip_unit": "batch"},
            "claimed epsilon (batch clipped)",
            4.0,
            noise_for(4.0, Steps(6), 1e-5),
        ),
        ({"mode": "client", "epsilon": 4.0}, "epsilon", 4.0, noise_for(4.0, Steps(3), 1e-5)),
        ({"mode": "client", "sigma": 2.0}, "epsilon", epsilon(2.0, 3, 1e-5), 2.0),
        ({"sigma": 2.0, "rate": 8.0}, "epsilon", epsilon(2.0, 6, 1e-5), 2.0),
        ({"mode": "client", "sigma": 2.0, "clip_update": "median"}, None, None, None),
        ({"sigma": 0.0}, None, None, None),
    ],
)
def test_an_epsilon_is_claimed_by_its_name_where_it_holds_and_none_where_it_does_not(
    params, name, claimed, sigma
):
    said = claims(made("dp-sgd", **params))
    if name is None:
        assert said == {}
        return
    assert said[name] == pytest.approx(claimed, rel=1e-12) and said["noise multiplier"] == sigma
    assert said["unit of privacy"] == params.get("mode", "example")
    # of all 6 steps, and half the noise of a clipped batch: its gradient turns with one example
    holds = epsilon(sigma / (1 + ("clip_unit" in params)), 3 * (1 + ("mode" not in params)), 1e-5)
    assert said["epsilon"] == pytest.approx(holds, rel=1e-9)


class Unknown(Defense):
    """A method of another package that declares nothing."""

    def loss(self, logits, batch, ctx):
        return super().loss(logits, batch, ctx)


class Heir(installed("placebo")):
    """Does not inherit what its base declares."""


class Shown(Defense):
    """Overrides the phase ``transform`` alone."""

    def transform(self, batch, ctx):
        return batch


class NoisyPick(Defense):
    """Looks at private data by mechanisms with noise."""

    private = ("transform",)
    looks = None

    def transform(self, batch, ctx):
        return batch

    def privacy_event(self, unit, client, ctx):
        return self.looks if unit == "example" else None


def looking(event):
    defense = NoisyPick()
    defense.looks = event
    return defense


class HeirOfPick(NoisyPick):
    """Has its base's event, and does not declare where it uses private data."""

    looks = GaussianDpEvent(2.0)


CLIENT, STOPPING = {"mode": "client"}, lambda: made("early-stopping", validation=0.9)


@pytest.mark.parametrize(
    ("other", "params", "why"),
    [
        (
            STOPPING,
            {},
            "EarlyStopping uses private data outside the noise, in prepare, local_train",
        ),
        (Shown, {}, "Shown does not declare where it uses private data"),
        (Heir, {}, "Heir does not declare"),
        (Unknown, CLIENT, "Unknown does not declare"),
        (STOPPING, CLIENT, None),
        (lambda: made("grad-sparse"), {}, None),
        (
            lambda: looking(NonPrivateDpEvent()),
            {},
            "NoisyPick uses private data outside the noise, in transform",
        ),
        (HeirOfPick, {}, "HeirOfPick does not declare where it uses private data"),
    ],
)
def test_an_epsilon_is_withheld_where_another_defense_uses_private_data_outside_the_noise(
    other, params, why
):
    said = claims(
        other(),
        made("dp-sgd", epsilon=4.0, **params),
        clients=tiny_clients(clients=2, samples=12),
        members=(0, 1),
    )
    if why is None:
        assert (
            said["epsilon"] == 4.0
            and said["epsilon if replaced"] == pytest.approx(9.08, abs=0.01)
            and "remarks" not in said
        )
    else:
        assert not {"epsilon", "epsilon if replaced", "delta"} & set(said) and said[
            "unit of privacy"
        ] in ("example", "client")
        assert any(
            text.startswith(f"DPSGD states no epsilon here: {why}") for text in said["remarks"]
        )


@pytest.mark.parametrize(
    ("params", "steps"),
    [
        ({"sigma": 2.0}, SelfComposedDpEvent(GaussianDpEvent(2.0), 6)),
        (
            {"sigma": 1.5, "sampling": "poisson"},
            SelfComposedDpEvent(PoissonSampledDpEvent(5 / 12, GaussianDpEvent(1.5)), 18),
        ),
        ({"sigma": 4.0, "clip_unit": "batch"}, SelfComposedDpEvent(GaussianDpEvent(2.0), 6)),
    ],
)
def test_the_epsilon_of_a_composition_is_that_of_the_events_of_its_parts(params, steps):
    looks = LaplaceDpEvent(3.0), GaussianDpEvent(5.0)
    facts = claims(looking(looks[0]), made("dp-sgd", **params), looking(looks[1]))
    events = ComposedDpEvent([*looks, steps])
    accountant = rdp.RdpAccountant().compose(events)
    assert facts["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert facts["epsilon"] > claims(made("dp-sgd", **params))["epsilon"]
    assert "epsilon if replaced" not in facts


def test_by_client_nothing_is_claimed_where_running_statistics_go_out_unclipped():
    assert claims(made("dp-sgd", mode="client", epsilon=4.0), module=normed()) == {}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"epsilon": 1.0, "sigma": 0.1}, "epsilon and sigma both set the noise"),
        (
            {"epsilon": 1.0, "mode": "client", "clip_update": "median"},
            "a median of private norms supports no epsilon",
        ),
        ({"mode": "client", "sampling": "poisson"}, "leave them out"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(params, says):
    with pytest.raises(ValidationError, match=says):
        made("dp-sgd", **params)


def test_an_epsilon_that_no_noise_reaches_is_refused_before_training():
    facts = facts_of(9, rounds=100, local_epochs=50)
    with pytest.raises(
        UserError,
        match=r"after 5,000 steps: .* multiplier of 10,000 it is 0.03\d+ \(accountant gaussian\)",
    ):
        made("dp-sgd", epsilon=1e-4, delta=1e-9).check(facts)
    made("dp-sgd", epsilon=1.0, delta=1e-9).check(facts)
