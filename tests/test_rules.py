"""Aggregation rules next to slow references, and the property that makes each of them that rule.

The references are Python loops over float64 numbers, written from the papers' definitions.
"""

from __future__ import annotations

import math
from statistics import median as middle_value

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core import Federation, Layer, MemberData, ReportContext, ServerContext, UserError, norms
from fedbench.plugins.defenses import fedbench_defenses
from fedbench.plugins.defenses.rules import deepsight as ds
from fedbench.plugins.defenses.rules.atm import AngularTrimmedMean, angular_trimmed_mean, mean_angles, shares
from fedbench.plugins.defenses.rules.bulyan import Bulyan, bulyan, select
from fedbench.plugins.defenses.rules.deepsight import DeepSight
from fedbench.plugins.defenses.rules.fang import Fang, leave_one_out, rejected
from fedbench.plugins.defenses.rules.fedavg import FedAvg
from fedbench.plugins.defenses.rules.geometric_median import GeometricMedian, geometric_median
from fedbench.plugins.defenses.rules.geometry import angles, squared_distances
from fedbench.plugins.defenses.rules.krum import Krum, MultiKrum, krum, multi_krum, released_krum, released_multi_krum
from fedbench.plugins.defenses.rules.median import Median, median
from fedbench.plugins.defenses.rules.norm_clipping import NormClipping, norm_clipping
from fedbench.plugins.defenses.rules.server_dp import ServerDP, noisy_mean, shared_noise
from fedbench.plugins.defenses.rules.top_k import TopK, top_k_mean
from fedbench.plugins.defenses.rules.trimmed_mean import TrimmedMean, trimmed_mean

NAMES = {
    "fedavg", "server-dp", "top-k", "median", "trimmed-mean", "krum", "multi-krum", "fang", "deepsight", "atm",
    "norm-clipping", "geometric-median", "bulyan",
}  # fmt: skip


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


def slow_trimmed(rows, b):
    columns = [sorted(c)[b : len(rows) - b] for c in zip(*rows, strict=True)]
    return [math.fsum(c) / len(c) for c in columns]


def slow_krum_order(rows, f):
    scores = []
    for i, a in enumerate(rows):
        others = sorted(square(a, b) for j, b in enumerate(rows) if j != i)
        scores.append((math.fsum(others[: max(1, len(rows) - f - 2)]), math.fsum(others), i))
    return [i for *_, i in sorted(scores)]


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

    means = [
        sum(angle(a, b) for j, b in enumerate(rows) if j != i) / max(1, len(rows) - 1) for i, a in enumerate(rows)
    ]
    kept = sorted(range(len(rows)), key=lambda i: means[i])[: len(rows) - 2 * kappa]
    ordered = sorted(means)
    gap = ordered[len(kept)] - ordered[len(kept) - 1] if kappa else math.inf
    return mean_of([rows[i] for i in kept]), gap


def slow_bulyan(rows, f):
    left, chosen = list(rows), []
    while len(chosen) < len(rows) - 2 * f:
        chosen.append(left.pop(slow_krum_order(left, f)[0]))
    found = []
    for column in zip(*chosen, strict=True):
        near = sorted(column, key=lambda v: abs(v - middle_value(column)))[: len(rows) - 4 * f]
        found.append(math.fsum(near) / len(near))
    return found


def total_distance(point, rows):
    return math.fsum(math.sqrt(square(point, row)) for row in rows)


def slow_geometric_median(rows):
    z = mean_of(rows)
    for _ in range(400):
        pull = [1 / max(math.sqrt(square(z, r)), 1e-6) for r in rows]
        z = [math.fsum(p * v for p, v in zip(pull, c, strict=True)) / sum(pull) for c in zip(*rows, strict=True)]
    return z


# ---- the table of rules -----------------------------------------------------------------------------------------

# name: (fast(updates, f), slow(rows, f), least K for f)
RULES = {
    "fedavg": (lambda u, f: FedAvg(weights="equal").aggregate(u, torch.ones(len(u)), None), lambda r, f: mean_of(r), lambda f: 1),
    "top-k": (lambda u, f: top_k_mean(u, 0.5), lambda r, f: slow_top_k(r, 0.5), lambda f: 1),
    "median": (lambda u, f: median(u), lambda r, f: [middle_value(c) for c in zip(*r, strict=True)], lambda f: 1),
    "median-lower": (
        lambda u, f: median(u, "lower"), lambda r, f: [sorted(c)[(len(r) - 1) // 2] for c in zip(*r, strict=True)], lambda f: 1,
    ),
    "trimmed-mean": (trimmed_mean, slow_trimmed, lambda f: 2 * f + 1),
    "krum": (krum, lambda r, f: r[slow_krum_order(r, f)[0]], lambda f: 2 * f + 3),
    "krum-released": (released_krum, slow_released_krum, lambda f: 2 * f + 3),
    "multi-krum": (
        lambda u, f: multi_krum(u, f, len(u) - f), lambda r, f: mean_of([r[i] for i in slow_krum_order(r, f)[: len(r) - f]]),
        lambda f: 2 * f + 3,
    ),
    "multi-krum-released": (
        lambda u, f: released_multi_krum(u, f, 4), lambda r, f: slow_released_multi_krum(r, f, 4), lambda f: 2 * f + 3,
    ),
    "atm": (angular_trimmed_mean, lambda r, f: slow_atm(r, f)[0], lambda f: 2 * f + 1),
    "norm-clipping": (
        lambda u, f: norm_clipping(u), lambda r, f: slow_clipped(r, middle_value(norm_of(x) for x in r)), lambda f: 1,
    ),
    "norm-clipping-fixed": (lambda u, f: norm_clipping(u, 0.5), lambda r, f: slow_clipped(r, 0.5), lambda f: 1),
    "server-dp-quiet": (
        lambda u, f: noisy_mean(u, 0.7, 0.0, torch.zeros(u.shape[1])), lambda r, f: slow_clipped(r, 0.7), lambda f: 1,
    ),
    "bulyan": (bulyan, slow_bulyan, lambda f: 4 * f + 3),
}  # fmt: skip
BY_ORDER = {"krum-released", "multi-krum-released"}  # the released code settles ties by the order of the rows


def draw_rows(seed: int, k: int, p: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(k, p, generator=g) * torch.rand(k, 1, generator=g).mul(2).exp() + torch.randn(p, generator=g)


shapes = {"seed": st.integers(0, 2**31), "k": st.integers(1, 12), "p": st.integers(1, 40), "f": st.integers(0, 3)}


def close(found: torch.Tensor, wanted, tolerance: float = 2e-5) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), np.array(wanted), rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("name", RULES)
@given(**shapes)
@settings(max_examples=40, deadline=None)
def test_a_rule_equals_its_slow_reference(name, seed, k, p, f):
    fast, slow, least = RULES[name]
    k = max(k, least(f))
    rows = draw_rows(seed, k, p)
    exact = rows.double().tolist()
    if name == "atm":  # in one or two dimensions rows may be collinear, and collinear rows tie
        wanted, gap = slow_atm(exact, f)
        assume(gap > 1e-5)
        return close(fast(rows, f), wanted)
    close(fast(rows, f), slow(exact, f))


@given(seed=shapes["seed"], k=shapes["k"], p=shapes["p"])
@settings(max_examples=30, deadline=None)
def test_geometric_median_minimises_the_sum_of_distances(seed, k, p):
    rows = draw_rows(seed, k, p)
    exact = rows.double().tolist()
    found = total_distance(geometric_median(rows).double().tolist(), exact)
    assert found <= total_distance(slow_geometric_median(exact), exact) * (1 + 1e-5) + 1e-5


@pytest.mark.parametrize("name", [*(n for n in RULES if n not in BY_ORDER), "geometric-median"])
@given(**shapes)
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_rows_does_not_matter(name, seed, k, p, f):
    fast, _, least = RULES.get(name, (lambda u, f: geometric_median(u), None, lambda f: 1))
    rows = draw_rows(seed, max(k, least(f)), p)
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    tolerance = 1e-4 if name == "geometric-median" else 2e-5
    assert torch.allclose(fast(rows, f), fast(shuffled, f), rtol=tolerance, atol=tolerance * 10)


SHRINKING = {"top-k", "server-dp-quiet", "norm-clipping-fixed"}  # these change a row even when all agree


@pytest.mark.parametrize("name", [*(n for n in RULES if n not in SHRINKING), "geometric-median"])
@given(**shapes)
@settings(max_examples=15, deadline=None)
def test_identical_rows_are_returned_unchanged(name, seed, k, p, f):
    fast, _, least = RULES.get(name, (lambda u, f: geometric_median(u), None, lambda f: 1))
    row = draw_rows(seed, 1, p)
    assert torch.allclose(fast(row.expand(max(k, least(f)), p).contiguous(), f), row[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_its_rows_as_they_were(name):
    rows = draw_rows(1, 11, 7)
    before = rows.clone()
    found = RULES[name][0](rows, 1)
    found += 1  # neither is the result a view of a row
    assert torch.equal(rows, before)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("name", [*RULES, "geometric-median"])
def test_nothing_larger_than_the_rows_is_made(name):
    rows = draw_rows(2, 12, 3000)
    fast = RULES[name][0] if name in RULES else lambda u, f: geometric_median(u)
    with Largest() as seen:
        fast(rows, 1)
    assert rows.shape[1] <= seen.elements <= rows.numel()


# ---- geometry ---------------------------------------------------------------------------------------------------


@given(seed=shapes["seed"], k=shapes["k"], p=shapes["p"])
@settings(max_examples=30, deadline=None)
def test_distances_and_angles_through_the_gram_matrix(seed, k, p):
    rows = draw_rows(seed, k, p)
    exact = rows.double()
    wanted = (exact[:, None] - exact[None]).square().sum(dim=2).numpy()
    found = squared_distances(rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert (found == found.T).all() and (np.diag(found) == 0).all()
    unit = exact / exact.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(angles(rows), np.arccos(np.clip((unit @ unit.T).numpy(), -1, 1)), atol=1e-6)


def test_wide_rows_are_multiplied_in_parts():
    rows = draw_rows(3, 3, 2**16 + 5)
    exact = rows.double()
    np.testing.assert_allclose(norms(rows).numpy(), exact.norm(dim=1).numpy(), rtol=1e-7)
    np.testing.assert_allclose(squared_distances(rows), torch.cdist(exact, exact).square().numpy(), rtol=1e-9, atol=1e-4)


# ---- a minority of arbitrary rows -------------------------------------------------------------------------------


def attacked(seed: int, honest: int, f: int, p: int, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(all rows, honest rows); the ``f`` malicious ones stand in front and are as long as ``size`` says."""
    rows = draw_rows(seed, honest, p)
    g = torch.Generator().manual_seed(seed + 1)
    bad = torch.randn(f, p, generator=g) * size
    return torch.cat([bad, rows]), rows


def largest_distance(rows: torch.Tensor) -> float:
    return float(torch.cdist(rows.double(), rows.double()).max())


attacks = {
    "seed": st.integers(0, 2**31), "f": st.integers(1, 2), "more": st.integers(0, 4), "p": st.integers(1, 20),
    "size": st.sampled_from([3.0, 1e3, 1e9, 1e18, 1e30]),
}  # fmt: skip


@given(**attacks)
@settings(max_examples=40, deadline=None)
def test_median_and_trimmed_mean_stay_among_the_honest_values(seed, f, more, p, size):
    rows, honest = attacked(seed, f + 1 + more, f, p, size)
    low, high = honest.amin(dim=0) - 1e-5, honest.amax(dim=0) + 1e-5
    for found in (median(rows), median(rows, "lower"), trimmed_mean(rows, f)):
        assert bool(((low <= found) & (found <= high)).all())


@given(**attacks)
@settings(max_examples=40, deadline=None)
def test_bulyan_stays_within_the_honest_range_of_the_median(seed, f, more, p, size):
    rows, honest = attacked(seed, 3 * f + 3 + more, f, p, size)
    low, high = honest.amin(dim=0), honest.amax(dim=0)
    found, reach = bulyan(rows, f), (high - low) * 1.0001 + 1e-5
    assert bool(((low - reach <= found) & (found <= high + reach)).all())


@given(**attacks)
@settings(max_examples=40, deadline=None)
def test_krum_stays_near_an_honest_row(seed, f, more, p, size):
    rows, honest = attacked(seed, f + 3 + more, f, p, size)
    bound = math.sqrt(len(rows) - f - 2) * largest_distance(honest)
    nearest = torch.cdist(krum(rows, f)[None].double(), honest.double()).min()
    assert nearest <= bound * (1 + 1e-6)
    centre = honest.mean(dim=0)
    assert (multi_krum(rows, f, len(rows) - f) - centre).norm() <= bound + 2 * largest_distance(honest)


@given(**attacks)
@settings(max_examples=40, deadline=None)
def test_geometric_median_stays_in_its_ball(seed, f, more, p, size):
    rows, honest = attacked(seed, f + 1 + more, f, p, size)
    n, centre = len(rows), honest.mean(dim=0)
    bound = 2 * (n - f) / (n - 2 * f) * float((honest - centre).norm(dim=1).max())
    assert float((geometric_median(rows) - centre).norm()) <= bound * (1 + 1e-3) + 1e-4


@given(**attacks)
@settings(max_examples=40, deadline=None)
def test_norm_clipping_bounds_what_a_minority_adds(seed, f, more, p, size):
    rows, honest = attacked(seed, f + 1 + more, f, p, size)
    assert float(norm_clipping(rows).norm()) <= float(honest.norm(dim=1).max()) * (1 + 1e-4)
    replaced = torch.cat([torch.zeros(f, p), honest])
    moved = (norm_clipping(rows, 0.5) - norm_clipping(replaced, 0.5)).norm()
    assert float(moved) <= f * 0.5 / len(rows) * (1 + 1e-4)


def test_the_plain_mean_is_moved_by_one_row():
    rows, honest = attacked(0, 9, 1, 5, 1e6)
    assert float((RULES["fedavg"][0](rows, 1) - honest.mean(dim=0)).norm()) > 1e4


# ---- each rule's own property -----------------------------------------------------------------------------------


def facts(cohort: int = 10, f: int = 0, classes: int = 10) -> Federation:
    return Federation(
        clients=cohort,
        rounds=5,
        local_epochs=1,
        batch_size=8,
        participation=1.0,
        n_classes=classes,
        n_params=100,
        assumed_malicious=f,
    )


def server(rows: torch.Tensor, f: int = 0, key: int = 0, classes: int = 10, **more) -> ServerContext:
    params = more.pop("params", torch.zeros(rows.shape[1]))
    return ServerContext(
        key=key,
        device=torch.device("cpu"),
        federation=facts(len(rows), f, classes),
        round=1,
        params=params,
        participants=tuple(range(len(rows))),
        memory={},
        model_index=0,
        assumed_malicious=f,
        **more,
    )


def step_of(rule, rows: torch.Tensor, f: int = 0, **more) -> torch.Tensor:
    return rule.aggregate(rows, torch.full((len(rows),), 1 / len(rows)), server(rows, f, **more))


def test_fedavg_weighs_by_size_or_equally():
    rows, weights = draw_rows(4, 3, 6), torch.tensor([0.5, 0.3, 0.2])
    size = FedAvg().aggregate(rows, weights, server(rows))
    equal = FedAvg(weights="equal").aggregate(rows, weights, server(rows))
    close(size, (0.5 * rows[0] + 0.3 * rows[1] + 0.2 * rows[2]).tolist())
    close(equal, mean_of(rows.double().tolist()))


@pytest.mark.parametrize("rule", [TopK(), Median(), TrimmedMean(), Krum(), MultiKrum(), AngularTrimmedMean(), Bulyan()])
def test_other_rules_do_not_read_the_weights(rule):
    rows = draw_rows(5, 8, 6)
    lopsided = torch.tensor([0.93] + [0.01] * 7)
    assert torch.equal(rule.aggregate(rows, lopsided, server(rows, 1)), step_of(rule, rows, 1))


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (TrimmedMean(), lambda r: slow_trimmed(r, 2)), (TrimmedMean(b=1), lambda r: slow_trimmed(r, 1)),
        (Krum(), lambda r: r[slow_krum_order(r, 2)[0]]), (Krum(f=1), lambda r: r[slow_krum_order(r, 1)[0]]),
        (MultiKrum(), lambda r: mean_of([r[i] for i in slow_krum_order(r, 2)[:9]])),
        (MultiKrum(keep=3), lambda r: mean_of([r[i] for i in slow_krum_order(r, 2)[:3]])),
        (MultiKrum(variant="released", f=1), lambda r: slow_released_multi_krum(r, 1, 4)),
        (MultiKrum(variant="released", f=1, keep=3), lambda r: slow_released_multi_krum(r, 1, 3)),
        (AngularTrimmedMean(), lambda r: slow_atm(r, 2)[0]), (AngularTrimmedMean(kappa=3), lambda r: slow_atm(r, 3)[0]),
        (Bulyan(), lambda r: slow_bulyan(r, 2)), (Median(middle="lower"), lambda r: slow_trimmed(r, 5)),
    ],
)  # fmt: skip
def test_a_number_left_out_is_what_the_federation_assumes(rule, wanted):
    rows = draw_rows(6, 11, 8)
    close(step_of(rule, rows, 2), wanted(rows.double().tolist()))


def test_top_k_keeps_half_of_every_row():
    rows = torch.tensor([[4.0, -3.0, 1.0, 0.5], [0.1, 0.2, -8.0, 6.0]])
    assert step_of(TopK(), rows).tolist() == [2.0, -1.5, -4.0, 3.0]
    assert torch.allclose(step_of(TopK(keep=1), rows), rows.mean(dim=0))


@pytest.mark.parametrize("clip", [0.5, 4.0])
def test_noise_on_the_mean_has_the_stated_deviation(clip):
    sigma, n, p = 2.0, 5, 40_000
    rows = draw_rows(7, n, p)
    quiet = step_of(ServerDP(clip=clip, sigma=0), rows)
    noise = step_of(ServerDP(clip=clip, sigma=sigma), rows) - quiet
    assert float(noise.std()) == pytest.approx(sigma * clip / n, rel=0.02)
    assert abs(float(noise.mean())) < 4 * sigma * clip / n / math.sqrt(p)
    assert float(quiet.norm()) <= clip * 1.0001
    again, other = step_of(ServerDP(clip=clip, sigma=sigma), rows), step_of(ServerDP(clip=clip, sigma=sigma), rows, key=1)
    assert torch.equal(again - quiet, noise) and not torch.equal(other - quiet, noise)


def test_shared_noise_is_absolute_and_clips_nothing():
    rows = 100 * draw_rows(8, 4, 40_000)
    noise = step_of(ServerDP(variant="shared", sigma=0.5), rows) - rows.mean(dim=0)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    vector = torch.ones(40_000)  # one vector on every row is that vector on the mean
    assert torch.allclose(shared_noise(rows, 0.5, vector), (rows + 0.5).mean(dim=0), rtol=1e-4, atol=1e-4)


def test_krum_takes_the_nearer_of_two_mutual_neighbours():
    rows = torch.tensor([[0.0], [1.0], [5.0]])
    assert krum(rows, 0).tolist() == [1.0] and krum(rows.flip(0), 0).tolist() == [1.0]


def test_krum_variants_differ_where_the_paper_and_the_code_do():
    found = [(krum(r, 1), released_krum(r, 1)) for r in (draw_rows(s, 8, 2) for s in range(30))]
    assert any(not torch.equal(a, b) for a, b in found)


def test_bulyan_selects_without_the_far_rows():
    rows, _ = attacked(9, 9, 2, 6, 1e6)
    assert len(select(squared_distances(rows), 2)) == 7
    assert not {0, 1} & set(select(squared_distances(rows), 2))


# ---- ATM --------------------------------------------------------------------------------------------------------


def atm_weights(rows: torch.Tensor, kappa: int) -> np.ndarray:
    return shares(mean_angles(rows), len(rows) - 2 * kappa)


def test_atm_with_eight_rows_and_kappa_two_keeps_exactly_four():
    weights = atm_weights(draw_rows(10, 8, 30), 2)
    assert sorted(weights.tolist()) == [0.0] * 4 + [1.0] * 4


def test_atm_removes_the_orthogonal_row_of_collinear_ones():
    honest = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5, 7.0])[:, None] * torch.tensor([1.0, 1.0, 0.0])
    rows = torch.cat([honest[:2], torch.tensor([[0.0, 0.0, 50.0]]), honest[2:]])
    weights = atm_weights(rows, 1)
    assert weights[2] == 0 and weights.sum() == pytest.approx(5)
    assert np.delete(weights, 2) == pytest.approx([5 / 6] * 6)  # the collinear ones tie and share five places
    shuffled = rows[torch.tensor([6, 2, 0, 5, 1, 4, 3])]
    assert torch.allclose(angular_trimmed_mean(rows, 1), honest.mean(dim=0), atol=1e-6)
    assert torch.allclose(angular_trimmed_mean(shuffled, 1), honest.mean(dim=0), atol=1e-6)


@given(seed=shapes["seed"], k=st.integers(3, 12), scale=st.floats(1e-6, 1e6), which=st.integers(0, 11))
@settings(max_examples=40, deadline=None)
def test_scaling_a_row_does_not_change_which_rows_atm_keeps(seed, k, scale, which):
    rows = draw_rows(seed, k, 20)
    longer = rows.clone()
    longer[which % k] *= scale
    assert np.allclose(atm_weights(rows, 1), atm_weights(longer, 1), atol=1e-6)


def test_atm_removes_a_minority_that_points_elsewhere():
    g = torch.Generator().manual_seed(0)
    way = torch.randn(50, generator=g)
    rows = torch.cat([-way + 0.3 * torch.randn(2, 50, generator=g), way + 0.3 * torch.randn(8, 50, generator=g)])
    weights = atm_weights(rows, 2)
    assert weights[:2].tolist() == [0, 0] and weights.sum() == pytest.approx(6)


def test_a_zero_row_counts_as_orthogonal():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1]])
    assert angles(rows)[0].tolist() == pytest.approx([0, math.pi / 2, math.pi / 2])
    assert torch.isfinite(angular_trimmed_mean(torch.zeros(5, 3), 1)).all()


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


def start_model() -> torch.Tensor:
    return trained(*samples(300, 1000), torch.zeros(CLASSES * (WIDTH + 1)), steps=10)


def inspected(rows: torch.Tensor, f: int, start: torch.Tensor, **more) -> ServerContext:
    root = MemberData(*samples(100, 500))
    return server(rows, f, params=start, layers=LAYERS, input_shape=(WIDTH,), root=root, logits=linear, **more)


def colluders(honest: int, bad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, start): ``bad`` rows in front, trained to call everything class 3; the honest ones on all classes."""
    start = start_model()
    rows = [trained(samples(150, k)[0], torch.full((150,), 3), start) for k in range(bad)]
    return torch.stack(rows + [trained(*samples(150, 100 + k), start) for k in range(honest)]), start


@pytest.mark.parametrize(("honest", "bad"), [(7, 3), (7, 1), (8, 2), (30, 10)])
def test_deepsight_removes_colluders_that_train_on_one_label(honest, bad):
    rows, start = colluders(honest, bad)
    ctx = inspected(rows, bad, start)
    assert DeepSight(samples=200)._accept(rows, ctx).tolist() == [False] * bad + [True] * honest
    kept = DeepSight(samples=200).aggregate(rows, torch.ones(len(rows)), inspected(rows, bad, start))
    bound = middle_value(norm_of(r) for r in rows.double().tolist())
    close(kept, slow_clipped(rows[bad:].double().tolist(), bound))


@pytest.mark.parametrize(
    ("bad", "removed", "acts_as"), [(3, 6, "filter and norm clipping"), (0, 0, "norm clipping (no row was ever removed)")]
)
def test_deepsight_says_how_many_rows_it_removed_and_what_it_is_without_any(bad, removed, acts_as):
    rows, start = colluders(7, bad)
    rule, ctx = DeepSight(samples=100), inspected(rows, bad, start)
    for _ in range(2):
        rule.aggregate(rows, torch.ones(len(rows)), ctx)
    told = ReportContext(federation=ctx.federation, members=(), coalition={}, of_member={}, of_server={0: ctx.memory, 1: {}})
    assert rule.report(told) == {"rows removed": removed, "acts as": acts_as}


def test_deepsight_keeps_an_honest_cohort():
    rows, start = colluders(10, 0)
    assert DeepSight(samples=200)._accept(rows, inspected(rows, 0, start)).all()


@pytest.mark.parametrize("wild", [1e12, 1e30])
def test_deepsight_survives_a_wild_row(wild):
    rows, start = colluders(8, 1)
    rows[0] = wild * torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0))
    step = DeepSight(samples=50).aggregate(rows, torch.ones(9), inspected(rows, 1, start))
    assert float(step.norm()) <= float(rows[1:].norm(dim=1).max())


@pytest.mark.parametrize("k", [1, 2, 5])
def test_deepsight_judges_few_rows_one_by_one(k):
    rows, start = colluders(k, 0)
    assert DeepSight(samples=20)._accept(rows, inspected(rows, 0, start)).all()


def test_neups_and_exceedings_by_hand():
    weight = torch.tensor([[[1.0, -2.0], [0.0, 0.0], [0.5, 0.0]]])
    bias = torch.tensor([[-1.0, 0.5, 0.5]])
    neups = ds.update_energies(weight, bias)
    assert neups[0].tolist() == pytest.approx([16 / 17.25, 0.25 / 17.25, 1 / 17.25])
    assert ds.threshold_exceedings(neups, 0.01).tolist() == [1]  # of three classes a third of the largest counts
    many = np.array([[0.5, 0.06, 0.04, *([0.4 / 197] * 197)]])  # .01 is more than 1 / 200: the threshold is .005
    assert ds.threshold_exceedings(many, 0.01).tolist() == [3]
    assert ds.update_energies(torch.zeros(1, 4, 2), torch.zeros(1, 4)).tolist() == [[0.25] * 4]


def test_ddif_is_the_mean_ratio_of_probabilities():
    g = torch.Generator().manual_seed(0)
    rows, reference = torch.randn(3, 6, 4, generator=g), torch.randn(6, 4, generator=g)
    wanted = [
        [math.fsum(float(r.softmax(1)[m, c] / reference.softmax(1)[m, c]) for m in range(6)) / 6 for c in range(4)] for r in rows
    ]
    np.testing.assert_allclose(ds.division_differences(list(rows), reference), wanted, rtol=1e-5)


def test_a_cluster_goes_when_a_third_of_it_is_suspicious():
    exceedings = np.array([2, 8, 8, 4, 9, 9, 9, 1])  # the median is 8: up to 4 is suspicious
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 2])
    assert ds.accepted(labels, exceedings, 1 / 3).tolist() == [False] * 3 + [True] * 4 + [False]


def test_deepsight_clusters_where_the_features_agree():
    g = np.random.default_rng(0)
    group = np.repeat([0, 1], [7, 4])
    points = np.eye(2)[group] * 5 + 0.1 * g.normal(size=(11, 2))
    labels = ds.ensemble(points, [points, points], 1 - np.eye(11), 3)  # the third feature sees no clusters
    assert len(set(labels[:7])) == len(set(labels[7:])) == 1 and labels[0] != labels[7]


def test_deepsight_needs_an_output_bias():
    rows, start = colluders(5, 0)
    ctx = server(rows, params=start, layers=LAYERS[:1], input_shape=(WIDTH,), logits=linear)
    with pytest.raises(UserError, match="output layer has none"):
        DeepSight().aggregate(rows, torch.ones(5), ctx)


@pytest.mark.parametrize("reject", ["err", "lfr", "union"])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_fang_removes_the_row_that_raises_the_loss(reject, size):
    start = start_model()
    honest = torch.stack([trained(*samples(150, 100 + k), start) for k in range(7)])
    rows = torch.cat([honest[:3], -10 * size * honest[:1], honest[3:]])
    step = Fang(reject=reject).aggregate(rows, torch.ones(8), inspected(rows, 1, start))
    candidates = [honest.mean(dim=0)] if reject != "union" else [
        honest[[i for i in range(7) if i != j]].mean(dim=0) for j in range(7)
    ] + [honest.mean(dim=0)]
    assert any(torch.allclose(step, c, atol=1e-5) for c in candidates)


@given(seed=shapes["seed"], k=st.integers(2, 12), p=shapes["p"])
@settings(max_examples=20, deadline=None)
def test_leave_one_out_means(seed, k, p):
    rows = draw_rows(seed, k, p)
    for i, found in enumerate(leave_one_out(rows)):
        close(found, mean_of([r for j, r in enumerate(rows.double().tolist()) if j != i]))


def test_leaving_out_a_huge_row_leaves_nothing_of_it():
    rows, honest = attacked(3, 5, 1, 9, 1e30)
    close(next(leave_one_out(rows)), mean_of(honest.double().tolist()))


def test_fang_rejects_by_error_by_loss_and_by_either():
    impact = np.array([[0.9, 0.0], [0.1, 0.3], [0.2, 0.3], [0.0, 0.1]])  # loss, error
    assert rejected(impact, 1, "lfr") == {0}
    assert rejected(impact, 1, "err") == {2}  # errors tie: the larger impact on the loss
    assert rejected(impact, 1, "union") == {0, 2}
    assert rejected(impact, 0, "union") == set()


def test_fang_states_the_samples_it_needs():
    assert Fang().root_samples == 100 and Fang(root=40).root_samples == 40 and Median().root_samples == 0


def test_fang_does_not_evaluate_when_nobody_is_expected_to_lie():
    rows = draw_rows(1, 4, 3)
    assert torch.allclose(step_of(Fang(), rows, 0), rows.mean(dim=0))


# ---- registration and refusals ----------------------------------------------------------------------------------


def test_every_rule_is_announced_and_described():
    announced = {c.name: c.target for c in fedbench_defenses() if ".rules." in c.target}
    assert set(announced) == NAMES
    for target in announced.values():
        module, name = target.split(":")
        rule = getattr(__import__(module, fromlist=[name]), name)
        assert all(field.description for field in rule.Params.model_fields.values()), name
        rule().check(facts(11, 2))


@pytest.mark.parametrize(
    ("rule", "cohort", "f", "text"),
    [
        (Krum(), 6, 2, "krum with f = 2 needs at least 2f + 3 = 7 rows a round and has 6"),
        (Krum(f=4), 10, 0, "2f + 3 = 11 rows a round and has 10"),
        (MultiKrum(), 4, 1, "2f + 3 = 5"), (MultiKrum(keep=9), 8, 0, "keep = 9 rows a round and has 8"),
        (TrimmedMean(), 4, 2, "b = 2 needs at least 2b + 1 = 5"), (TrimmedMean(b=5), 10, 0, "2b + 1 = 11"),
        (AngularTrimmedMean(), 4, 2, "kappa = 2 needs at least 2 kappa + 1 = 5"),
        (AngularTrimmedMean(kappa=5), 10, 1, "2 kappa + 1 = 11"),
        (Bulyan(), 10, 2, "4f + 3 = 11"), (Fang(), 4, 2, "2f + 1 = 5"),
        (Median(), 4, 2, "median needs more honest than malicious rows, and 2 of 4"),
        (GeometricMedian(), 10, 6, "6 of 10"), (DeepSight(), 2, 1, "1 of 2"),
        (NormClipping(), 4, 2, "norm-clipping without a bound needs more honest"),
    ],
)  # fmt: skip
def test_a_federation_that_is_too_small_is_refused_with_its_numbers(rule, cohort, f, text):
    with pytest.raises(UserError) as refused:
        rule.check(facts(cohort, f))
    assert text in str(refused.value) and "\n" not in str(refused.value) and "let more clients take part" in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "cohort", "f"),
    [
        (Krum(), 7, 2), (MultiKrum(), 5, 1), (TrimmedMean(), 5, 2), (AngularTrimmedMean(), 5, 2), (Bulyan(), 11, 2),
        (Fang(), 5, 2), (Median(), 5, 2), (GeometricMedian(), 5, 2), (DeepSight(), 3, 1), (NormClipping(bound=1.0), 4, 2),
        (FedAvg(), 1, 0), (ServerDP(), 1, 0), (TopK(), 1, 0), (Median(), 1, 0),
    ],
)  # fmt: skip
def test_a_federation_that_is_just_large_enough_is_served(rule, cohort, f):
    rule.check(facts(cohort, f))


@pytest.mark.parametrize(
    ("rule", "enough"), [(Krum(), 4), (MultiKrum(), 4), (TrimmedMean(), 3), (AngularTrimmedMean(), 3), (Bulyan(), 5)]
)
def test_fewer_rows_than_planned_are_refused_only_where_nothing_can_be_computed(rule, enough):
    assert torch.isfinite(step_of(rule, draw_rows(0, enough, 4), 1)).all()
    with pytest.raises(UserError, match="rows a round and has"):
        step_of(rule, draw_rows(0, enough - 1, 4), 1)


def test_fang_that_would_remove_every_row_says_so():
    rows, start = colluders(2, 0)
    with pytest.raises(UserError, match="removes all of the 2 rows"):
        Fang(f=2).aggregate(rows, torch.ones(2), inspected(rows, 0, start))
