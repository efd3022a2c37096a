"""Attacks on shadow models, each next to a slow reference."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from worlds import attack, slow_net

from fedbench.core import Audit, Observations, ShadowModels, SkipCell

CLASSES = 4


def score(name, shadows, y, **params):
    """[n]: what an attack says of candidates labelled ``y``."""
    seen = Observations(
        view="external",
        rounds=np.array([9]),
        clients=np.array([-1]),
        target=0,
        signals={},
        shadow_models=shadows,
    )
    return attack(name, **params).score(seen, audit_of(y))


def audit_of(y):
    return Audit(
        key=5,
        device=torch.device("cpu"),
        ids=np.arange(len(y)),
        y=y,
        n_classes=CLASSES,
        target_client=0,
    )


def noise(
    seed,
    models=3,
    n=40,
    samples=30,
    globals_=1,
    scale=3.0,
):
    """(shadows, labels) without meaning, for comparing formulas."""
    rng = np.random.default_rng(seed)

    def logits(*shape):
        return rng.normal(0, scale, (*shape, CLASSES)).astype(np.float32)

    shadows = ShadowModels(
        logits=logits(models, n),
        shadow_logits=logits(models, samples),
        shadow_y=np.arange(samples) % CLASSES,
        shadow_member=rng.random((models, samples)) < 0.5,
        target_logits=logits(n),
        model_of=rng.integers(0, globals_, n),
        target_shadow_logits=logits(globals_, samples),
    )
    return shadows, rng.integers(0, CLASSES, n)


def softmax(logits):
    e = np.exp(np.asarray(logits, np.float64) - logits.max())
    return e / e.sum()


def changed(**fields):
    return replace(
        noise(0)[0], **{name: change(getattr(noise(0)[0], name)) for name, change in fields.items()}
    )


def first(n):
    return lambda a: a[:n]


SKIPPED = [
    ("rmia", {}, None, "give the setting audit.shadow"),
    (
        "lira-offline",
        {},
        changed(logits=first(1), shadow_logits=first(1), shadow_member=first(1)),
        "at least 2 shadow models; audit.shadow gives 1",
    ),
    (
        "shadow",
        {},
        changed(shadow_logits=lambda a: np.where(a == a[2, 0, 0], np.nan, a)),
        "shadow model 2 diverged",
    ),
    (
        "lira-offline",
        {},
        changed(shadow_logits=lambda a: a[:, :0], shadow_member=lambda a: a[:, :0]),
        "no shadow samples",
    ),
    ("rmia", {}, changed(shadow_member=np.ones_like), "no population"),
    (
        "shadow",
        {},
        changed(shadow_y=lambda a: a % 3),
        "no shadow sample has the label 3",
    ),
    (
        "shadow",
        {},
        changed(shadow_member=np.ones_like),
        "no sample both inside and outside",
    ),
    (
        "shadow",
        {"per_class": True, "epochs": 1},
        changed(shadow_member=lambda a: a | (np.arange(30) % CLASSES == 3)),
        "no sample of class 3 both inside and outside",
    ),
]


@pytest.mark.parametrize(("name", "params", "shadows", "reason"), SKIPPED)
def test_without_usable_shadow_models_the_cell_is_skipped_with_the_reason(
    name, params, shadows, reason
):
    with pytest.raises(SkipCell, match=reason):
        score(name, shadows, noise(0)[1], **params)


# --- LiRA -----------------------------------------------------------------------------------------


def slow_phi(logits, label):
    p = softmax(logits)
    return math.log(p[label]) - math.log(sum(p[c] for c in range(CLASSES) if c != label))


@pytest.mark.parametrize("form", ["one-sided", "released"])
@pytest.mark.parametrize("variance", ["global", "per-sample"])
@pytest.mark.parametrize("models", [2, 7])
def test_lira_is_its_definition_candidate_by_candidate(form, variance, models):
    """The z value among the out-models; as released, minus the log density about their median."""
    shadows, y = noise(3, models=models)
    out = [[slow_phi(model[i], y[i]) for model in shadows.logits] for i in range(len(y))]
    shared = {
        "one-sided": math.sqrt(statistics.mean(statistics.variance(o) for o in out)),
        "released": statistics.pstdev([v for o in out for v in o]),
    }
    wanted = []
    for logits, label, o in zip(shadows.target_logits, y, out, strict=True):
        own = statistics.stdev(o) if form == "one-sided" else statistics.pstdev(o)
        phi, deviation = slow_phi(logits, label), shared[form] if variance == "global" else own
        z = (phi - statistics.mean(o)) / deviation
        wanted.append(
            z if form == "one-sided" else -stats.norm.logpdf(phi, statistics.median(o), deviation)
        )
    assert_allclose(
        score("lira-offline", shadows, y, form=form, variance=variance), wanted, rtol=1e-6
    )


@pytest.mark.parametrize(("models", "variance"), [(63, "global"), (64, "per-sample")])
def test_lira_estimates_a_variance_per_sample_from_64_shadow_models_on(models, variance):
    shadows, y = noise(4, models=models, n=10)
    expected = score("lira-offline", shadows, y, variance=variance, form="one-sided")
    assert_array_equal(score("lira-offline", shadows, y), expected)


@pytest.mark.parametrize("form", ["one-sided", "released"])
def test_lira_tells_candidates_apart_where_probabilities_are_one_and_is_finite_where_models_agree(
    form,
):
    shadows, y = noise(6, scale=0.1)
    shadows.target_logits[np.arange(len(y)), y] += np.linspace(20, 900, len(y), dtype=np.float32)
    found = score("lira-offline", shadows, y, variance="per-sample", form=form)
    assert np.isfinite(found).all() and len(np.unique(found)) == len(y)
    same = replace(shadows, logits=np.repeat(shadows.logits[:1], 3, axis=0))
    assert np.isfinite(score("lira-offline", same, y, variance="per-sample", form=form)).all()


# --- RMIA -----------------------------------------------------------------------------------------


def slow_rmia(shadows, y, a, gamma):
    """The definition, one pair (x, z) at a time."""

    def evidence(p_out):
        return ((1 + a) * p_out + (1 - a)) / 2

    def ratio_z(j, z):
        label = shadows.shadow_y[z]
        out = [
            softmax(m[z])[label]
            for m, inside in zip(shadows.shadow_logits, shadows.shadow_member, strict=True)
            if not inside[z]
        ]
        return (
            softmax(shadows.target_shadow_logits[j, z])[label] / evidence(np.mean(out))
            if out
            else None
        )

    found = []
    for i, label in enumerate(y):
        p_out = np.mean([softmax(m[i])[label] for m in shadows.logits])
        ratio_x = softmax(shadows.target_logits[i])[label] / evidence(p_out)
        population = [ratio_z(shadows.model_of[i], z) for z in range(len(shadows.shadow_y))]
        found.append(np.mean([ratio_x / r >= gamma for r in population if r is not None]))
    return found


@settings(max_examples=12)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([1.0, 2.0]),
    st.integers(1, 3),
)
def test_rmia_is_its_definition_pair_by_pair(seed, a, gamma, globals_):
    shadows, y = noise(seed, n=12, samples=15, globals_=globals_)
    shadows.shadow_member[:, 0] = True  # an out-sample of no model: left out
    shadows.shadow_member[0, 1:] &= False
    assert_allclose(
        score("rmia", shadows, y, a=a, gamma=gamma), slow_rmia(shadows, y, a, gamma), atol=1e-12
    )


def test_rmia_counts_ties_and_gamma_asks_for_more():
    """Every ratio is 1: all z are dominated at gamma 1, none above it."""
    shadows, y = noise(10, scale=0.0)
    assert (score("rmia", shadows, y) == 1).all() and (
        score("rmia", shadows, y, gamma=1.01) == 0
    ).all()
    # where confidences underflow
    assert np.isfinite(score("rmia", *noise(11, scale=2000.0), a=1.0)).all()


# --- shadow ---------------------------------------------------------------------------------------


def slow_shadow(shadows, y, top, per_class, order, epochs):
    """A net on sorted softmax and label, or one a class; as many members as others teach it."""
    generator = audit_of(y).generator

    def ordered(p, label):
        own = [p[label]] if order == "true-first" else []
        return own + sorted(np.delete(p, label) if own else p, reverse=True)

    def features(logits, labels):
        rows = [
            ordered(softmax(z), label)[:top]
            + ([] if per_class else [float(c == label) for c in range(CLASSES)])
            for z, label in zip(logits, labels, strict=True)
        ]
        return torch.tensor(np.array(rows), dtype=torch.float32)

    x = torch.cat([features(logits, shadows.shadow_y) for logits in shadows.shadow_logits])
    member = torch.from_numpy(shadows.shadow_member.reshape(-1))
    label, found = np.tile(shadows.shadow_y, len(shadows.shadow_logits)), np.empty(len(y))
    for c in sorted(set(y)) if per_class else [None]:
        rows = torch.from_numpy(np.flatnonzero((label == c) | (c is None)))
        sides = [rows[member[rows]], rows[~member[rows]]]
        fewest = min(map(len, sides))
        chosen = (
            torch.cat(
                [side[torch.randperm(len(side), generator=generator)[:fewest]] for side in sides]
            )
            .sort()
            .values
        )
        net, mine = slow_net(x[chosen], member[chosen], epochs, generator), (y == c) | (c is None)
        found[mine] = net(features(shadows.target_logits, y)[mine]).sigmoid()
    return found


@pytest.mark.parametrize(
    ("top", "per_class", "order"),
    [(None, False, "sorted"), (2, True, "sorted"), (2, True, "true-first")],
)
def test_shadow_is_a_net_on_predictions_in_order_trained_by_adam(top, per_class, order):
    shadows, y = noise(2, samples=150)
    params = {"top": top, "per_class": per_class, "confidences": order, "epochs": 3}
    found = score("shadow", shadows, y, **params)
    assert_allclose(found, slow_shadow(shadows, y, top, per_class, order, 3), rtol=1e-3, atol=1e-5)
    assert attack("shadow").threshold == 0.5 and attack("lira-offline").threshold is None


def test_an_error_on_the_label_is_seen_by_its_own_confidence_alone():
    shadows, y = noise(4, models=4, n=200, samples=400, scale=0.1)
    member = np.arange(200) < 100
    for logits, labels, inside in (
        *zip(shadows.shadow_logits, [shadows.shadow_y] * 4, shadows.shadow_member, strict=True),
        (shadows.target_logits, y, member),
    ):
        predicted = np.where(inside, labels, (labels + 1) % CLASSES)  # wrong on all outsiders
        logits[np.arange(len(labels)), predicted] += 3
    aucs = {}
    for order in ("sorted", "true-first"):
        found = score("shadow", shadows, y, confidences=order)
        aucs[order] = (found[member][:, None] > found[~member]).mean()
    assert aucs["true-first"] == 1 and abs(aucs["sorted"] - 0.5) < 0.15
