"""Aggregation rules next to slow references, and the property that makes each of them that rule.

The references are loops over rows of float64 numbers, written from the papers' definitions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from defense_cases import made, server
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parties import facts_of, generator
from torch.nn.functional import cross_entropy

from fedbench.core import Layer, MemberData, ReportContext, UserError
from fedbench.plugins.defenses.rules import screening as ds

# ---- the same rules, slowly ----------------------------------------------------------------------


def slow_clipped(rows, bound):
    return np.mean(
        [row * min(1.0, bound / max(np.linalg.norm(row), 1e-300)) for row in rows], axis=0
    )


def slow_top_k(rows, keep):
    kept = np.zeros_like(rows)
    for row, out in zip(rows, kept, strict=True):
        for i in sorted(range(len(row)), key=lambda i: -abs(row[i]))[
            : max(1, math.floor(keep * len(row)))
        ]:
            out[i] = row[i]
    return kept.mean(axis=0)


def slow_trimmed(rows, b):
    return np.sort(rows, axis=0)[b : len(rows) - b].mean(axis=0)


def slow_krum_order(rows, f):
    scores = []
    for i, a in enumerate(rows):
        others = sorted(((a - b) ** 2).sum() for j, b in enumerate(rows) if j != i)
        scores.append((sum(others[: max(1, len(rows) - f - 2)]), sum(others), i))
    return [i for *_, i in sorted(scores)]


def slow_released_krum(rows, f):
    scores = [sum(sorted(np.linalg.norm(a - b) for b in rows)[: len(rows) - f - 2]) for a in rows]
    return rows[np.argmin(scores)]


def slow_released_multi_krum(rows, f, keep):
    left, chosen = list(rows), []
    while len(left) > 2 * f + 2 and len(chosen) < keep:
        scores = [
            sum(sorted(((a - b) ** 2).sum() for b in left)[: len(left) - 2 - f]) for a in left
        ]
        chosen.append(left.pop(np.argmin(scores)))
    return np.mean(chosen, axis=0)


def slow_atm(rows, kappa):
    unit = [row / np.linalg.norm(row) for row in rows]
    means = [
        sum(np.arccos(np.clip(a @ b, -1, 1)) for b in unit if b is not a) / max(1, len(rows) - 1)
        for a in unit
    ]
    kept = np.argsort(means)[: len(rows) - 2 * kappa]
    if kappa:  # in one or two dimensions rows may be collinear, and collinear rows tie
        assume(np.sort(means)[len(kept)] - np.sort(means)[len(kept) - 1] > 1e-5)
    return rows[kept].mean(axis=0)


def slow_bulyan(rows, f):
    left, chosen = list(rows), []
    while len(chosen) < len(rows) - 2 * f:
        chosen.append(left.pop(slow_krum_order(left, f)[0]))
    columns = [
        sorted(c, key=lambda v, c=c: abs(v - np.median(c)))[: len(rows) - 4 * f]
        for c in np.transpose(chosen)
    ]
    return np.mean(columns, axis=1)


# ---- the table of rules --------------------------------------------------------------------------

# id: (rule, its parameters, the same slowly from rows and f, (a, b): it takes a f + b rows); the
# rule is told f by the federation
RULES = {
    "fedavg": ("fedavg", {"weights": "equal"}, lambda r, f: r.mean(axis=0), (0, 1)),
    "top-k": ("top-k", {}, lambda r, f: slow_top_k(r, 0.5), (0, 1)),
    "median": ("median", {}, lambda r, f: np.median(r, axis=0), (0, 1)),
    "median-lower": (
        "median",
        {"middle": "lower"},
        lambda r, f: np.sort(r, axis=0)[(len(r) - 1) // 2],
        (0, 1),
    ),
    "trimmed-mean": ("trimmed-mean", {}, slow_trimmed, (2, 1)),
    "krum": ("krum", {}, lambda r, f: r[slow_krum_order(r, f)[0]], (1, 3)),
    "krum-released": ("krum", {"variant": "released"}, slow_released_krum, (2, 3)),
    "multi-krum": (
        "multi-krum",
        {},
        lambda r, f: r[slow_krum_order(r, f)[: len(r) - f]].mean(axis=0),
        (1, 3),
    ),
    "multi-krum-kept": (
        "multi-krum",
        {"f": 1, "keep": 3},
        lambda r, f: r[slow_krum_order(r, 1)[:3]].mean(axis=0),
        (0, 4),
    ),
    "multi-krum-released": (
        "multi-krum",
        {"variant": "released"},
        lambda r, f: slow_released_multi_krum(r, f, 4),
        (2, 3),
    ),
    "atm": ("atm", {}, slow_atm, (2, 1)),
    "norm-clipping": (
        "norm-clipping",
        {},
        lambda r, f: slow_clipped(r, np.median(np.linalg.norm(r, axis=1))),
        (0, 1),
    ),
    "norm-clipping-fixed": (
        "norm-clipping",
        {"bound": 0.5},
        lambda r, f: slow_clipped(r, 0.5),
        (0, 1),
    ),
    "server-dp-quiet": (
        "server-dp",
        {"clip": 0.7, "sigma": 0},
        lambda r, f: slow_clipped(r, 0.7),
        (0, 1),
    ),
    "bulyan": ("bulyan", {}, slow_bulyan, (4, 1)),
}


def draw_rows(seed: int, k: int, p: int) -> torch.Tensor:
    g = generator(seed)
    own, sizes = torch.randn(k, p, generator=g), torch.rand(k, 1, generator=g).mul(2).exp()
    return own * sizes + torch.randn(p, generator=g)


def step_of(
    rule, rows: torch.Tensor, f: int = 0, weights: torch.Tensor | None = None, **context
) -> torch.Tensor:
    weights = torch.full((len(rows),), 1 / len(rows)) if weights is None else weights
    return rule.aggregate(rows, weights, server(rows, f, **context))


def close(found: torch.Tensor, wanted, tolerance: float = 2e-5) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=tolerance, atol=tolerance * 10)


shapes = {
    "seed": st.integers(0, 2**31),
    "k": st.integers(1, 12),
    "p": st.integers(1, 40),
    "f": st.integers(0, 3),
}


@pytest.mark.parametrize("name", RULES)
@given(**shapes, size=st.sampled_from([1.0, 1.0, 1e9, 1e18]))
@settings(max_examples=25)
def test_a_rule_equals_its_slow_reference_and_leaves_its_rows_as_they_were(
    name, seed, k, p, f, size
):
    rule, params, slow, (a, b) = RULES[name]
    rows = draw_rows(seed, max(k, a * f + b), p)
    rows[0] *= size  # one row may be huge
    before = rows.clone()
    lopsided = torch.linspace(1, 9, len(rows))  # no rule here weighs its rows
    found = step_of(made(rule, **params), rows, f, lopsided / lopsided.sum())
    close(found, slow(rows.double().numpy(), f))
    found += 1  # the result is no view of a row
    assert torch.equal(rows, before)


@given(seed=shapes["seed"], k=shapes["k"], p=shapes["p"])
@settings(max_examples=25)
def test_geometric_median_minimises_the_sum_of_distances(seed, k, p):
    rows = draw_rows(seed, k, p)
    found, exact = step_of(made("geometric-median"), rows).double().numpy(), rows.double().numpy()
    z = exact.mean(axis=0)
    for _ in range(300):
        pull = [1 / max(np.linalg.norm(z - row), 1e-6) for row in exact]
        z = sum(w * row for w, row in zip(pull, exact, strict=True)) / sum(pull)

    def total(point):
        return sum(np.linalg.norm(point - row) for row in exact)

    assert total(found) <= total(z) + 1e-4


def test_top_k_keeps_the_stated_part_whatever_floating_point_makes_of_it():
    rows = torch.arange(1.0, 101.0)[None]
    step = made("top-k", keep=0.29).aggregate(rows, torch.ones(1), server(rows))
    assert step.count_nonzero() == 29  # 0.29 * 100 is 28.999...


def test_fedavg_weighs_rows_by_size_unless_told():
    rows, weights = draw_rows(4, 3, 6), torch.tensor([0.5, 0.3, 0.2])
    wanted = 0.5 * rows[0] + 0.3 * rows[1] + 0.2 * rows[2]
    close(step_of(made("fedavg"), rows, 0, weights), wanted)


@pytest.mark.parametrize(("sent", "told", "acts_as"), [(9, 2, 2), (8, 1, 1)])
def test_rejected_rows_are_taken_off_the_malicious_rows_to_expect(sent, told, acts_as):
    rows = draw_rows(6, sent, 4)
    found = step_of(made("trimmed-mean", b=2), rows, told, assumed=2)
    close(found, slow_trimmed(rows.double().numpy(), acts_as))


# ---- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "deviation"),
    [({"clip": 0.5, "sigma": 2.0}, 2 * 0.5 / 5), ({"sigma": 0.5, "variant": "shared"}, 0.5)],
)
def test_noise_on_the_mean_has_the_stated_deviation(params, deviation):
    rows = draw_rows(7, 5, 40_000)
    quiet = step_of(made("server-dp", **{**params, "sigma": 0}), rows)
    noise = step_of(made("server-dp", **params), rows) - quiet
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(noise.mean())) < 4 * deviation / math.sqrt(40_000)
    if "variant" in params:
        assert torch.equal(quiet, rows.mean(dim=0))


# ---- ATM -----------------------------------------------------------------------------------------


def test_atm_removes_the_orthogonal_row_and_collinear_rows_share_the_places():
    """The six collinear rows tie for five places: each has five sixths of one."""
    honest = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5, 7.0])[:, None] * torch.tensor([1.0, 1.0, 0.0])
    rows = torch.cat([honest[:2], torch.tensor([[0.0, 0.0, 50.0]]), honest[2:]])
    assert torch.allclose(step_of(made("atm"), rows, 1), honest.mean(dim=0), atol=1e-6)


# ---- rules that look at the model ----------------------------------------------------------------

CLASSES, WIDTH = 10, 12
LAYERS = (
    Layer("fc.weight", 0, CLASSES * WIDTH, (CLASSES, WIDTH)),
    Layer("fc.bias", CLASSES * WIDTH, CLASSES * (WIDTH + 1), (CLASSES,)),
)


def linear(params: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ LAYERS[0].of(params).T + LAYERS[1].of(params)


def samples(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=generator(99)) * 1.5
    y = torch.randint(0, CLASSES, (n,), generator=g)
    return centres[y] + torch.randn(n, WIDTH, generator=g), y


def trained(x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, steps: int = 5) -> torch.Tensor:
    params = start.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(cross_entropy(linear(params, x), y), params)
        params = (params - 0.2 * gradient).detach().requires_grad_()
    return params.detach() - start


def colluders(honest: int, bad: int) -> tuple[torch.Tensor, dict]:
    """(rows, fields of the context): ``bad`` rows in front are trained to call everything class 3,
    the others on all classes.
    """
    start = trained(*samples(300, 1000), torch.zeros(CLASSES * (WIDTH + 1)), steps=10)
    rows = [trained(samples(150, k)[0], torch.full((150,), 3), start) for k in range(bad)]
    rows += [trained(*samples(150, 100 + k), start) for k in range(honest)]
    root = MemberData(*samples(100, 500))
    return torch.stack(rows), {
        "params": start,
        "layers": LAYERS,
        "input_shape": (WIDTH,),
        "root": root,
        "logits": linear,
    }


@pytest.mark.parametrize(("honest", "bad"), [(7, 3), (30, 10), (2, 0)])
def test_deepsight_removes_colluders_that_train_on_one_label_and_no_honest_row(honest, bad):
    rows, fields = colluders(honest, bad)
    rule, memory = made("deepsight", samples=200), {}
    exact = rows.double().numpy()
    for _ in range(2):
        kept = step_of(rule, rows, bad, memory=memory, **fields)
        close(kept, slow_clipped(exact[bad:], np.median(np.linalg.norm(exact, axis=1))))
    told = ReportContext(
        federation=facts_of(1), members=(), coalition={}, of_member={}, of_server={0: memory, 1: {}}
    )
    acts_as = "filter and norm clipping" if bad else "norm clipping (no row was ever removed)"
    assert rule.report(told) == {"rows removed": 2 * bad, "acts as": acts_as}


def test_deepsight_energies_and_exceedings_by_hand():
    weight = torch.tensor([[[1.0, -2.0], [0.0, 0.0], [0.5, 0.0]]])
    bias = torch.tensor([[-1.0, 0.5, 0.5]])
    neups = ds.update_energies(weight, bias)
    assert neups[0].tolist() == pytest.approx([16 / 17.25, 0.25 / 17.25, 1 / 17.25])
    # of three classes a third of the largest counts
    assert ds.threshold_exceedings(neups, 0.01).tolist() == [1]
    # .01 is more than 1 / 200: the threshold is .005
    many = np.array([[0.5, 0.06, 0.04, *([0.4 / 197] * 197)]])
    assert ds.threshold_exceedings(many, 0.01).tolist() == [3]
    assert ds.update_energies(torch.zeros(1, 4, 2), torch.zeros(1, 4)).tolist() == [[0.25] * 4]


def slow_fang(rows, f, reject, evaluate):
    """Rows left by rejection: the f without which the error, or the loss, falls most."""
    loss, error = evaluate(rows.mean(dim=0))
    impact = []
    for k in range(len(rows)):
        without = evaluate(torch.stack([r for j, r in enumerate(rows) if j != k]).mean(dim=0))
        impact.append((loss - without[0], error - without[1]))
    by_loss = sorted(range(len(rows)), key=lambda k: -impact[k][0])[:f]
    by_error = sorted(range(len(rows)), key=lambda k: (-impact[k][1], -impact[k][0]))[:f]
    removed = {"err": {*by_error}, "lfr": {*by_loss}, "union": {*by_error, *by_loss}}[reject]
    return [k for k in range(len(rows)) if k not in removed]


@pytest.mark.parametrize(("f", "reject"), [(0, "union"), (2, "err"), (2, "lfr"), (2, "union")])
def test_fang_averages_the_rows_that_do_not_raise_error_or_loss(reject, f):
    rows, fields = colluders(6, 1)
    rows = torch.cat([rows[2:4], rows[:1], -3 * rows[3:4], rows[4:], -2 * rows[4:5]])
    root = fields["root"]

    def evaluate(step):
        logits = linear(fields["params"] + step, root.x).double()
        wrong = logits.argmax(1) != root.y
        return float(cross_entropy(logits, root.y)), float(wrong.double().mean())

    tried = []

    def logits(params, x):
        tried.append(params - fields["params"])
        return linear(params, x)

    found = step_of(made("fang", reject=reject), rows, f, **{**fields, "logits": logits})
    every = list(range(len(rows)))
    kept = slow_fang(rows, f, reject, evaluate) if f else every
    close(found, rows[kept].mean(dim=0))
    # it tries the mean of all rows, and of all but each
    subsets = [every, *([j for j in every if j != k] for k in every)] if f else []
    for step, subset in zip(tried, subsets, strict=True):
        torch.testing.assert_close(step, rows[subset].mean(dim=0), rtol=1e-4, atol=1e-5)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "params", "f", "least", "text"),
    [
        ("krum", {}, 2, 7, "krum with f = 2 needs at least 2f + 3 = 7 rows a round and has 6"),
        ("multi-krum", {"keep": 9}, 0, 9, "multi-krum: keep is 9, and a round has 8 rows"),
        ("trimmed-mean", {"b": 5}, 0, 11, "b = 5 needs at least 2b + 1 = 11"),
        ("atm", {}, 2, 5, "kappa = 2 needs at least 2kappa + 1 = 5"),
        ("bulyan", {}, 2, 11, "4f + 3 = 11"),
        ("fang", {}, 2, 5, "2f + 1 = 5"),
        ("median", {}, 2, 5, "median needs more honest than malicious rows, and 2 of 4"),
        ("norm-clipping", {}, 2, 5, "norm-clipping without a bound needs more honest"),
    ],
)
def test_a_federation_with_a_row_too_few_is_refused_with_its_numbers(rule, params, f, least, text):
    defense = made(rule, **params)
    defense.check(facts_of(9, clients=least, assumed_malicious=f))
    with pytest.raises(UserError, match="let more clients take part") as refused:
        defense.check(facts_of(9, clients=least - 1, assumed_malicious=f))
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "params", "says"),
    [
        ("fang", {"f": 2}, "removes all of the 2 rows"),
        ("deepsight", {}, "output layer has none"),
        ("krum", {"f": 1}, "rows a round and has 2"),
    ],
)
def test_a_round_that_a_rule_cannot_judge_is_refused(rule, params, says):
    rows, fields = colluders(2, 0)
    with pytest.raises(UserError, match=says):
        step_of(made(rule, **params), rows, **{**fields, "layers": LAYERS[:1]})
