"""Aggregation rules next to slow references, and the property that makes each of them that rule.

The references are Python loops over float64 numbers, written from the papers' definitions.
"""

from __future__ import annotations

import math
from statistics import median as middle_value

import numpy as np
import pytest
import torch
from defense_cases import made, server
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parties import facts_of
from torch.nn.functional import cross_entropy

from fedbench.core import Layer, MemberData, ReportContext, UserError
from fedbench.plugins.defenses.rules import deepsight as ds

# ---- the same rules, slowly -------------------------------------------------------------------------------------


def mean_of(rows):
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def norm_of(row):
    return math.sqrt(math.fsum(v * v for v in row))


def square(a, b):
    return math.fsum((u - v) ** 2 for u, v in zip(a, b, strict=True))


def slow_clipped(rows, bound):
    return mean_of([[v * min(1.0, bound / norm_of(r)) if norm_of(r) else v for v in r] for r in rows])


def slow_top_k(rows, keep):
    kept = []
    for row in rows:
        k = max(1, math.floor(keep * len(row)))
        largest = sorted(range(len(row)), key=lambda i: -abs(row[i]))[:k]
        kept.append([v if i in largest else 0.0 for i, v in enumerate(row)])
    return mean_of(kept)


def slow_median(rows):
    return [middle_value(column) for column in zip(*rows, strict=True)]


def slow_trimmed(rows, b):
    return [math.fsum(sorted(c)[b : len(rows) - b]) / (len(rows) - 2 * b) for c in zip(*rows, strict=True)]


def slow_krum_order(rows, f):
    scores = []
    for i, a in enumerate(rows):
        others = sorted(square(a, b) for j, b in enumerate(rows) if j != i)
        scores.append((math.fsum(others[: max(1, len(rows) - f - 2)]), math.fsum(others), i))
    return [i for *_, i in sorted(scores)]


def slow_multi_krum(rows, f, keep):
    return mean_of([rows[i] for i in slow_krum_order(rows, f)[:keep]])


def slow_released_krum(rows, f):
    scores = [math.fsum(sorted(math.sqrt(square(a, b)) for b in rows)[: len(rows) - f - 2]) for a in rows]
    return rows[scores.index(min(scores))]


def slow_released_multi_krum(rows, f, keep):
    left, chosen = list(rows), []
    while len(left) > 2 * f + 2 and len(chosen) < keep:
        scores = [math.fsum(sorted(square(a, b) for b in left)[: len(left) - 2 - f]) for a in left]
        chosen.append(left.pop(scores.index(min(scores))))
    return mean_of(chosen)


def slow_atm(rows, kappa):
    def angle(a, b):
        if norm_of(a) == 0 or norm_of(b) == 0:
            return math.pi / 2
        return math.acos(max(-1.0, min(1.0, math.fsum(u * v for u, v in zip(a, b, strict=True)) / norm_of(a) / norm_of(b))))

    means = [sum(angle(a, b) for j, b in enumerate(rows) if j != i) / max(1, len(rows) - 1) for i, a in enumerate(rows)]
    kept = sorted(range(len(rows)), key=lambda i: means[i])[: len(rows) - 2 * kappa]
    if kappa:  # in one or two dimensions rows may be collinear, and collinear rows tie
        assume(sorted(means)[len(kept)] - sorted(means)[len(kept) - 1] > 1e-5)
    return mean_of([rows[i] for i in kept])


def slow_bulyan(rows, f):
    left, chosen = list(rows), []
    while len(chosen) < len(rows) - 2 * f:
        chosen.append(left.pop(slow_krum_order(left, f)[0]))
    found = []
    for column in zip(*chosen, strict=True):
        near = sorted(column, key=lambda v: abs(v - middle_value(column)))[: len(rows) - 4 * f]
        found.append(math.fsum(near) / len(near))
    return found


# ---- the table of rules -----------------------------------------------------------------------------------------

# id: (rule, its parameters, the same slowly from rows and f, least K for f); the rule is told f by the federation
RULES = {
    "fedavg": ("fedavg", {"weights": "equal"}, lambda r, f: mean_of(r), lambda f: 1),
    "top-k": ("top-k", {}, lambda r, f: slow_top_k(r, 0.5), lambda f: 1),
    "median": ("median", {}, lambda r, f: slow_median(r), lambda f: 1),
    "median-lower": (
        "median", {"middle": "lower"}, lambda r, f: [sorted(c)[(len(r) - 1) // 2] for c in zip(*r, strict=True)], lambda f: 1,
    ),
    "trimmed-mean": ("trimmed-mean", {}, slow_trimmed, lambda f: 2 * f + 1),
    "trimmed-mean-given": ("trimmed-mean", {"b": 1}, lambda r, f: slow_trimmed(r, 1), lambda f: 3),
    "krum": ("krum", {}, lambda r, f: r[slow_krum_order(r, f)[0]], lambda f: f + 3),
    "krum-given": ("krum", {"f": 1}, lambda r, f: r[slow_krum_order(r, 1)[0]], lambda f: 4),
    "krum-released": ("krum", {"variant": "released"}, slow_released_krum, lambda f: 2 * f + 3),
    "multi-krum": ("multi-krum", {}, lambda r, f: slow_multi_krum(r, f, len(r) - f), lambda f: f + 3),
    "multi-krum-kept": ("multi-krum", {"f": 1, "keep": 3}, lambda r, f: slow_multi_krum(r, 1, 3), lambda f: 4),
    "multi-krum-released": (
        "multi-krum", {"variant": "released"}, lambda r, f: slow_released_multi_krum(r, f, 4), lambda f: 2 * f + 3,
    ),
    "multi-krum-released-kept": (
        "multi-krum", {"variant": "released", "keep": 2}, lambda r, f: slow_released_multi_krum(r, f, 2), lambda f: 2 * f + 3,
    ),
    "atm": ("atm", {}, slow_atm, lambda f: 2 * f + 1),
    "atm-given": ("atm", {"kappa": 2}, lambda r, f: slow_atm(r, 2), lambda f: 5),
    "norm-clipping": ("norm-clipping", {}, lambda r, f: slow_clipped(r, middle_value(norm_of(x) for x in r)), lambda f: 1),
    "norm-clipping-fixed": ("norm-clipping", {"bound": 0.5}, lambda r, f: slow_clipped(r, 0.5), lambda f: 1),
    "server-dp-quiet": ("server-dp", {"clip": 0.7, "sigma": 0}, lambda r, f: slow_clipped(r, 0.7), lambda f: 1),
    "bulyan": ("bulyan", {}, slow_bulyan, lambda f: 4 * f + 1),
}  # fmt: skip


def draw_rows(seed: int, k: int, p: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(k, p, generator=g) * torch.rand(k, 1, generator=g).mul(2).exp() + torch.randn(p, generator=g)


def step_of(rule, rows: torch.Tensor, f: int = 0, weights: torch.Tensor | None = None, **context) -> torch.Tensor:
    weights = torch.full((len(rows),), 1 / len(rows)) if weights is None else weights
    return rule.aggregate(rows, weights, server(rows, f, **context))


def close(found: torch.Tensor, wanted, tolerance: float = 2e-5) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), np.asarray([float(v) for v in wanted]), rtol=tolerance, atol=tolerance * 10)


shapes = {"seed": st.integers(0, 2**31), "k": st.integers(1, 12), "p": st.integers(1, 40), "f": st.integers(0, 3)}


@pytest.mark.parametrize("name", RULES)
@given(**shapes)
@settings(max_examples=20)
def test_a_rule_equals_its_slow_reference_and_leaves_its_rows_as_they_were(name, seed, k, p, f):
    rule, params, slow, least = RULES[name]
    rows = draw_rows(seed, max(k, least(f)), p)
    before = rows.clone()
    lopsided = torch.linspace(1, 9, len(rows)) / torch.linspace(1, 9, len(rows)).sum()  # no rule here weighs its rows
    found = step_of(made(rule, **params), rows, f, lopsided)
    close(found, slow(rows.double().tolist(), f))
    found += 1  # the result is no view of a row
    assert torch.equal(rows, before)


@given(seed=shapes["seed"], k=shapes["k"], p=shapes["p"])
@settings(max_examples=20)
def test_geometric_median_minimises_the_sum_of_distances(seed, k, p):
    def total(point):
        return math.fsum(math.sqrt(square(point, row)) for row in exact)

    rows = draw_rows(seed, k, p)
    exact = rows.double().tolist()
    z = mean_of(exact)
    for _ in range(300):
        pull = [1 / max(math.sqrt(square(z, r)), 1e-6) for r in exact]
        z = [math.fsum(w * v for w, v in zip(pull, c, strict=True)) / sum(pull) for c in zip(*exact, strict=True)]
    assert total(step_of(made("geometric-median"), rows).double().tolist()) <= total(z) * (1 + 1e-5) + 1e-5


def test_fedavg_weighs_rows_by_size_unless_told():
    rows, weights = draw_rows(4, 3, 6), torch.tensor([0.5, 0.3, 0.2])
    close(step_of(made("fedavg"), rows, 0, weights), (0.5 * rows[0] + 0.3 * rows[1] + 0.2 * rows[2]).tolist())


@pytest.mark.parametrize(("sent", "told", "acts_as"), [(9, 2, 2), (8, 1, 1)])
def test_rejected_rows_are_taken_off_the_malicious_rows_to_expect(sent, told, acts_as):
    rows = draw_rows(6, sent, 4)
    found = made("trimmed-mean", b=2).aggregate(rows, torch.ones(sent), server(rows, told, assumed=2))
    close(found, slow_trimmed(rows.double().tolist(), acts_as))



# ---- a minority of arbitrary rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "bulyan", "krum", "multi-krum", "geometric-median", "norm-clipping"])
@given(
    seed=shapes["seed"], f=st.integers(1, 2), more=st.integers(0, 4), p=st.integers(1, 20),
    size=st.sampled_from([3.0, 1e3, 1e9, 1e18, 1e30]),
)  # fmt: skip
@settings(max_examples=15)
def test_a_minority_of_arbitrary_rows_moves_a_robust_rule_no_further_than_honest_rows_lie(name, seed, f, more, p, size):
    honest = draw_rows(seed, 3 * f + 3 + more, p)
    bad = torch.randn(f, p, generator=torch.Generator().manual_seed(seed + 1)) * size
    moved = step_of(made(name), torch.cat([bad, honest]), f).double() - honest.double().mean(dim=0)
    span = float((honest.amax(0) - honest.amin(0)).norm())
    assert float(moved.norm()) <= (2 * float(honest.norm(dim=1).max()) if name == "norm-clipping" else 4 * span) + 1e-4


# ---- noise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "deviation"),
    [
        ({"clip": 0.5, "sigma": 2.0}, 2 * 0.5 / 5), ({"clip": 4.0, "sigma": 2.0}, 2 * 4 / 5),
        ({"sigma": 0.5, "variant": "shared"}, 0.5),
    ],
)  # fmt: skip
def test_noise_on_the_mean_has_the_stated_deviation(params, deviation):
    rows = draw_rows(7, 5, 40_000)
    quiet, found = (step_of(made("server-dp", **{**params, **more}), rows) for more in ({"sigma": 0}, {}))
    noise = found - quiet
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(noise.mean())) < 4 * deviation / math.sqrt(40_000)
    if "variant" in params:
        assert torch.equal(quiet, rows.mean(dim=0))


# ---- ATM --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [range(7), (6, 2, 0, 5, 1, 4, 3)])
def test_atm_removes_the_orthogonal_row_and_collinear_rows_share_the_places(order):
    """The six collinear rows tie for five places: each has five sixths of one, in any order."""
    honest = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5, 7.0])[:, None] * torch.tensor([1.0, 1.0, 0.0])
    rows = torch.cat([honest[:2], torch.tensor([[0.0, 0.0, 50.0]]), honest[2:]])
    assert torch.allclose(step_of(made("atm"), rows[list(order)], 1), honest.mean(dim=0), atol=1e-6)


def test_atm_takes_a_zero_row_for_orthogonal_to_every_other():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.6, -0.8], [0.6, 0.8]])  # mean angles: pi/2, 1.14, 1.45, 1.45
    close(step_of(made("atm"), rows, 1), [(1 + 0.6) / 2, 0.0])
    assert torch.isfinite(step_of(made("atm"), torch.zeros(5, 3), 1)).all()


# ---- rules that look at the model -------------------------------------------------------------------------------

CLASSES, WIDTH = 10, 12
LAYERS = (
    Layer("fc.weight", 0, CLASSES * WIDTH, (CLASSES, WIDTH)),
    Layer("fc.bias", CLASSES * WIDTH, CLASSES * (WIDTH + 1), (CLASSES,)),
)


def linear(params: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ LAYERS[0].of(params).T + LAYERS[1].of(params)


def samples(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99)) * 1.5
    y = torch.randint(0, CLASSES, (n,), generator=g)
    return centres[y] + torch.randn(n, WIDTH, generator=g), y


def trained(x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, steps: int = 5) -> torch.Tensor:
    params = start.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(cross_entropy(linear(params, x), y), params)
        params = (params - 0.2 * gradient).detach().requires_grad_()
    return params.detach() - start


def colluders(honest: int, bad: int) -> tuple[torch.Tensor, dict]:
    """(rows, fields of the context): ``bad`` rows in front are trained to call everything class 3, the others on all classes."""
    start = trained(*samples(300, 1000), torch.zeros(CLASSES * (WIDTH + 1)), steps=10)
    rows = [trained(samples(150, k)[0], torch.full((150,), 3), start) for k in range(bad)]
    rows += [trained(*samples(150, 100 + k), start) for k in range(honest)]
    root = MemberData(*samples(100, 500))
    return torch.stack(rows), {"params": start, "layers": LAYERS, "input_shape": (WIDTH,), "root": root, "logits": linear}


@pytest.mark.parametrize(("honest", "bad"), [(7, 3), (7, 1), (30, 10), (10, 0), (5, 0), (1, 0)])
def test_deepsight_removes_colluders_that_train_on_one_label_and_no_honest_row(honest, bad):
    rows, fields = colluders(honest, bad)
    rule, memory = made("deepsight", samples=200), {}
    exact = rows.double().tolist()
    for _ in range(2):
        kept = step_of(rule, rows, bad, memory=memory, **fields)
        close(kept, slow_clipped(exact[bad:], middle_value(norm_of(r) for r in exact)))
    told = ReportContext(federation=facts_of(1), members=(), coalition={}, of_member={}, of_server={0: memory, 1: {}})
    acts_as = "filter and norm clipping" if bad else "norm clipping (no row was ever removed)"
    assert rule.report(told) == {"rows removed": 2 * bad, "acts as": acts_as}



def test_deepsight_energies_and_exceedings_by_hand():
    weight = torch.tensor([[[1.0, -2.0], [0.0, 0.0], [0.5, 0.0]]])
    bias = torch.tensor([[-1.0, 0.5, 0.5]])
    neups = ds.update_energies(weight, bias)
    assert neups[0].tolist() == pytest.approx([16 / 17.25, 0.25 / 17.25, 1 / 17.25])
    assert ds.threshold_exceedings(neups, 0.01).tolist() == [1]  # of three classes a third of the largest counts
    many = np.array([[0.5, 0.06, 0.04, *([0.4 / 197] * 197)]])  # .01 is more than 1 / 200: the threshold is .005
    assert ds.threshold_exceedings(many, 0.01).tolist() == [3]
    assert ds.update_energies(torch.zeros(1, 4, 2), torch.zeros(1, 4)).tolist() == [[0.25] * 4]


def test_deepsight_division_differences_are_mean_ratios_of_probabilities():
    g = torch.Generator().manual_seed(0)
    rows, reference = torch.randn(3, 6, 4, generator=g), torch.randn(6, 4, generator=g)
    wanted = (rows.softmax(2) / reference.softmax(1)).mean(1)
    np.testing.assert_allclose(ds.division_differences(list(rows), reference), wanted, rtol=1e-5)


def test_deepsight_removes_a_cluster_of_which_a_third_is_suspicious():
    exceedings = np.array([2, 8, 8, 4, 9, 9, 9, 1])  # the median is 8: up to 4 is suspicious
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 2])
    assert ds.accepted(labels, exceedings, 1 / 3).tolist() == [False] * 3 + [True] * 4 + [False]


def test_deepsight_clusters_rows_on_which_two_of_three_features_agree():
    g = np.random.default_rng(0)
    group = np.repeat([0, 1], [7, 4])
    points = np.eye(2)[group] * 5 + 0.1 * g.normal(size=(11, 2))
    labels = ds.ensemble(points, [points, points], 1 - np.eye(11), 3)  # the third feature sees no clusters
    assert len(set(labels[:7])) == len(set(labels[7:])) == 1 and labels[0] != labels[7]


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


@pytest.mark.parametrize("reject", ["err", "lfr", "union"])
@pytest.mark.parametrize("f", [0, 1, 2])
def test_fang_averages_the_rows_that_do_not_raise_error_or_loss(reject, f):
    rows, fields = colluders(6, 1)
    rows = torch.cat([rows, -3 * rows[3:5]])
    root = fields["root"]

    def evaluate(step):
        logits = linear(fields["params"] + step, root.x).double()
        return float(cross_entropy(logits, root.y)), float((logits.argmax(1) != root.y).double().mean())

    rule = made("fang", reject=reject)
    close(step_of(rule, rows, f, **fields), rows[slow_fang(rows, f, reject, evaluate) if f else slice(None)].mean(dim=0))
    assert rule.root_samples == 100 and made("fang", root=40).root_samples == 40


@pytest.mark.parametrize("reject", ["err", "lfr", "union"])
def test_fang_removes_a_row_of_huge_numbers(reject):
    rows, fields = colluders(7, 0)
    step = step_of(made("fang", reject=reject), torch.cat([rows[:3], -1e31 * rows[:1], rows[3:]]), 1, **fields)
    assert float((step - rows.mean(dim=0)).norm()) < float(rows.norm(dim=1).max())


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "params", "f", "least", "text"),
    [
        ("krum", {}, 2, 7, "krum with f = 2 needs at least 2f + 3 = 7 rows a round and has 6"),
        ("krum", {"f": 4}, 0, 11, "2f + 3 = 11"),
        ("multi-krum", {}, 1, 5, "2f + 3 = 5"), ("multi-krum", {"keep": 9}, 0, 9, "keep = 9 rows a round and has 8"),
        ("trimmed-mean", {}, 2, 5, "b = 2 needs at least 2b + 1 = 5"), ("trimmed-mean", {"b": 5}, 0, 11, "2b + 1 = 11"),
        ("atm", {}, 2, 5, "kappa = 2 needs at least 2 kappa + 1 = 5"), ("bulyan", {}, 2, 11, "4f + 3 = 11"),
        ("fang", {}, 2, 5, "2f + 1 = 5"), ("median", {}, 2, 5, "median needs more honest than malicious rows, and 2 of 4"),
        ("geometric-median", {}, 6, 13, "6 of 12"), ("deepsight", {}, 1, 3, "1 of 2"),
        ("norm-clipping", {}, 2, 5, "norm-clipping without a bound needs more honest"),
    ],
)  # fmt: skip
def test_a_federation_with_a_row_too_few_is_refused_with_its_numbers(rule, params, f, least, text):
    made(rule, **params).check(facts_of(9, clients=least, assumed_malicious=f))
    with pytest.raises(UserError) as refused:
        made(rule, **params).check(facts_of(9, clients=least - 1, assumed_malicious=f))
    assert text in str(refused.value) and "let more clients take part" in str(refused.value)



@pytest.mark.parametrize(("rule", "enough"), [("krum", 4), ("multi-krum", 4), ("trimmed-mean", 3), ("atm", 3), ("bulyan", 5)])
def test_fewer_rows_than_planned_are_refused_only_where_nothing_can_be_computed(rule, enough):
    assert torch.isfinite(step_of(made(rule), draw_rows(0, enough, 4), 1)).all()
    with pytest.raises(UserError, match="rows a round and has"):
        step_of(made(rule), draw_rows(0, enough - 1, 4), 1)


def test_fang_that_would_remove_every_row_is_refused():
    rows, fields = colluders(2, 0)
    with pytest.raises(UserError, match="removes all of the 2 rows"):
        step_of(made("fang", f=2), rows, **fields)


def test_deepsight_without_an_output_bias_is_refused():
    rows, fields = colluders(5, 0)
    with pytest.raises(UserError, match="output layer has none"):
        step_of(made("deepsight"), rows, **{**fields, "layers": LAYERS[:1]})
