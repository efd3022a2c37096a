"""Sweeps: the direction of a curve, claims about it, its figure with the paper's points."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from boards import sections_of
from claim_boards import NO, NONE, WIGGLE, YES, Cells, judge, pairs, section_of
from good_suite import GOOD, write

from fedbench.core import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.report import Figure, Table
from fedbench.core.spec.resolve import load_and_check
from fedbench.leaderboard import style
from fedbench.plugins.papers.claim_files import Quantity
from fedbench.plugins.papers.curves import Curve, lines_of, places_of
from fedbench.plugins.papers.published import published
from fedbench.plugins.papers.quantities import measured
from fedbench.plugins.papers.sweeps import Sweeps
from fedbench.plugins.papers.trends import null_reach, rank_correlation, trend_of, values_by_seed

# ---------------------------------------------------------------- rank correlation


def slow_correlation(values):
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum(int(b > a) - int(b < a) for a, b in pairs) / len(pairs)


def test_the_rank_correlation_is_kendalls():
    rng = np.random.default_rng(0)
    for points in range(2, 9):
        for values in (rng.normal(size=points), rng.integers(0, 3, points)):  # the latter: ties
            assert rank_correlation(values) == pytest.approx(slow_correlation(list(values)))


@pytest.mark.parametrize(("points", "seeds"), [(3, 2), (3, 4), (4, 1), (4, 3), (5, 1)])
def test_the_bound_without_a_direction_is_that_of_all_orders(points, seeds):
    of_seed = [slow_correlation(order) for order in permutations(range(points))]
    means = np.abs([np.mean(orders) for orders in product(of_seed, repeat=seeds)])
    reach = null_reach(points, seeds)
    assert (means > reach).mean() <= 0.05
    below = means[means < reach].max()
    assert (means >= below - 1e-9).mean() > 0.05


def test_a_monotone_sweep_has_a_direction_and_noise_covers_none():
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.normal(size=(5, 4))
    rising = trend_of(np.arange(4) + noise)
    assert rising.interval.mean == 1 and rising.interval.low > 0 and rising.p < 0.01
    assert trend_of(-np.arange(4) + noise).interval.high < 0
    intervals = [trend_of(rng.normal(size=(5, 4))).interval for _ in range(400)]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.03)


# ---------------------------------------------------------------- claims

AUCS = (0.55, 0.6, 0.7, 0.8)
NAMES = ("a", "b", "c", "d")


def rises(kind="rises", along="settings: [a, b, c, d]", row="none"):
    of = f"measure: auc, row: {row}, attack: attack0"
    return f"{kind}: {{{of}, along: {{{along}}}}}"


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        (rises(), YES),
        (rises("falls"), NO),
        (rises(along="settings: [d, c, b, a]"), NO),
        (rises(along="settings: [a, b, gone]"), NONE),
    ],
)
def test_a_claim_is_about_the_direction_over_settings(holds, expected):
    sections = [
        section_of(np.array([[auc + WIGGLE]]), ["none"], setting=name)
        for auc, name in zip(AUCS, NAMES, strict=True)
    ]
    claim = judge(sections, holds, sections={"here": {"setting": "a"}})
    assert claim.verdict == expected


def test_a_claim_is_about_the_direction_over_rows():
    labels = ["none", *NAMES]
    section = section_of(np.array([[auc + WIGGLE] for auc in (0.7, *AUCS)]), labels)
    along = "rows: [a, b, c, d]"
    assert judge([section], rises(along=along, row="a")).verdict == YES
    assert judge([section], rises("falls", along, "a")).verdict == NO


# ---------------------------------------------------------------- figures


def test_a_sweep_of_one_point_is_refused_when_planned(tmp_path):
    curve = "{name: beta, along: beta, points: [[iid, inf]]}"
    suite = GOOD + f"\nanalyses:\n  - name: sweep\n    params: {{curves: [{curve}]}}\n"
    with pytest.raises(UserError, match=r"a sweep has at least two points.*found iid"):
        load_and_check(write(tmp_path, suite), Registry.discover())


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    settings = {
        name: pairs(f"none {leak} 0.8, cofedmid {leak / 2} 0.7")
        for name, leak in (("iid", 0.5), ("beta1", 1.0), ("beta0-5", 2.0))
    }
    root = tmp_path_factory.mktemp("swept") / "r"
    return sections_of(Cells(root, settings, attacks=["seqmia"], n_ofl=1000))


POINTS = [("iid", "inf"), ("beta1", 1), ("beta0-5", 0.5)]
WHERE = {"iid": "iid", "beta1": "dirichlet:1.0", "beta0-5": "dirichlet:0.5"}
PUBLISHED = [
    {"source": "cofedmid", "setting": name, "where": {"table": "Table 16", "partition": partition}}
    for name, partition in WHERE.items()
]


def test_the_papers_points_are_hollow_marks(swept):
    printed = {}
    for row in published("cofedmid"):
        if row["table"] == "Table 16" and (row["attack"], row["metric"]) == ("seqmia", "auc"):
            printed[row["defense"], row["partition"]] = float(row["mean"])
    analysis = Sweeps(curves=[{"name": "skew", "along": "beta", "points": POINTS}])
    _, figure, table = analysis.draw_board(swept, PUBLISHED)
    assert isinstance(figure, Figure) and isinstance(table, Table)
    canvas = figure.draw(style)
    for axis, row in zip(canvas.axes, ("none", "cofedmid"), strict=True):
        (hollow,) = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
        expected = [printed[row, partition] for partition in WHERE.values()]
        assert list(hollow.get_ydata()) == expected and axis.get_title() == row
    assert [cells[-1].text for cells in table.rows] == ["rises", "rises"]


@pytest.mark.parametrize("measure", ["auc", "worst-auc", "tf01", "accuracy", "delta-accuracy"])
def test_values_of_seeds_have_the_mean_of_the_board(swept, measure):
    section = swept[-1]
    attack = "seqmia" if measure in ("auc", "tf01") else None
    q = Quantity(measure=measure, row="cofedmid", attack=attack)
    by_seed = values_by_seed(section, q)
    assert set(by_seed) == set(section.seeds)
    assert np.mean(list(by_seed.values())) == pytest.approx(measured(section, q).mean, abs=1e-6)


def test_a_point_that_was_not_run_is_left_out(swept):
    curve = Curve(name="skew", along="beta", points=[*POINTS, ("beta0-1", 0.1)])
    (place,) = places_of(curve, swept)
    assert [point.value for point in place.points] == ["inf", "1", "0.5"]
    lines = lines_of(place, [])
    assert len(lines) == 2 and all(len(line.ours) == 3 for line in lines)
