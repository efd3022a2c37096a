"""Analyses of overfitting: distributions, generalisation error, client models; and that they wait to be named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from boards import Folder, board, finished_run, rows_of, sections_of, table_of
from click.testing import CliRunner
from scipy import stats

from fedbench.core import auc
from fedbench.core.cli.main import cli
from fedbench.core.registry.components import Registry
from fedbench.core.store.record import Found
from fedbench.leaderboard.figures import style
from fedbench.plugins.analyses.client_models import MODELS, WHAT, ClientModels
from fedbench.plugins.analyses.distribution_figure import distribution_figure
from fedbench.plugins.analyses.distributions import EDGES, GRADIENT, SIDES, Distributions, total_variation
from fedbench.plugins.analyses.generalisation_error import GeneralisationError, errors_of
from fedbench.plugins.analyses.sides import advantage, outsiders_of

OVERFITTING = ["distributions", "generalisation-error", "client-models"]
OF_MEMBERS = ["loss-trajectories", "data-usage", "tf01-by-class"]  # tests/test_member_analyses.py
K, ROUNDS = 3, np.array([5, 10])
POOL = np.repeat([0, 1, 2, -1, -2], [60, 60, 60, 90, 30])


def run_of(leak=(0.0, 0.0, 2.0), seed=0, own_parts=False, **change):
    """A run of three clients; members of client k are easier by ``leak[k]`` under its own model, in the last round only."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=(2, K + 1, len(POOL)))
    for k, more in enumerate(leak):
        ease[1, k, k == POOL] += more
    p = 1 / (1 + np.exp(-ease))
    signals = {
        "confidence": p, "modified-entropy": -2 * (1 - p) * np.log(p), GRADIENT: (1 - p) ** 2,
        "loss": -np.log(p), "margin": ease,
    }  # fmt: skip
    part = np.where(POOL == -1, np.arange(len(POOL)) % K, -1) if own_parts else np.full(len(POOL), -1)
    fields = {
        "clients": K, "rounds": ROUNDS, "rows": (0, 1, 2, -1), "signals": signals, "pool": POOL, "outsider_of": part,
        "pool_y": np.arange(len(POOL)) % 4, "assignment": np.zeros((2, K), int),
        "rng": lambda purpose: np.random.default_rng([seed, *purpose.encode()]),
    }  # fmt: skip
    return finished_run(**fields | change)


# -- sides ---------------------------------------------------------------------------------------------------------------------


def test_a_clients_own_test_part_stands_in_for_the_hold_out():
    with_parts, without = run_of(own_parts=True), run_of()
    for k in range(K):
        assert np.array_equal(np.flatnonzero(outsiders_of(with_parts, k)), [i for i in range(180, 270) if i % K == k])
        assert outsiders_of(without, k).sum() == 90  # never what its owner held out


def test_the_advantage_is_the_two_sample_statistic_of_kolmogorov_and_smirnov():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 6, 40).astype(float), rng.integers(2, 9, 30).astype(float)  # with ties
    assert advantage(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic)
    assert advantage(one, other[:0]) == 0


# -- distributions -------------------------------------------------------------------------------------------------------------


def test_counts_are_those_of_every_clients_members_under_its_own_model_in_the_last_round():
    run = run_of()
    found = Distributions().analyse(run, None)
    confidence = run.signals["confidence"][1]
    for who, pool in zip(SIDES, ([0, 1, 2], [-1]), strict=True):
        mine = [confidence[k, np.isin(POOL, [k] if who == "members" else pool)] for k in range(K)]
        wanted = np.histogram(np.concatenate(mine), EDGES["confidence"])[0]
        assert np.array_equal(found.arrays[f"confidence {who}"], wanted)
    assert found.arrays["gradient norm members"].sum() == 180 and found.arrays["gradient norm non-members"].sum() == 270
    assert found.numbers["confidence distance"].value == pytest.approx(
        total_variation(*(found.arrays[f"confidence {who}"] for who in SIDES))
    )


def test_what_lies_beyond_the_bins_is_in_the_outer_ones():
    run = run_of()
    run.signals["modified-entropy"][1, 0, 0], run.signals["modified-entropy"][1, 0, 1] = 0.0, 1e9
    found = Distributions().analyse(run, None).arrays["modified entropy members"]
    assert found.sum() == 180 and found[0] >= 1 and found[-1] >= 1


def test_the_distance_is_above_its_null_only_where_members_differ():
    """Of 40 seeds: without a leak the distance keeps within four of its spreads of the null."""
    far = Distributions().analyse(run_of(leak=(4, 4, 4)), None).numbers
    assert far["confidence distance"].value > far["confidence null"].value + 10 * far["confidence distance"].error
    alike = [Distributions().analyse(run_of(leak=(0, 0, 0), seed=s, own_parts=True), None).numbers for s in range(40)]
    over = np.array([n["confidence distance"].value - n["confidence null"].value for n in alike])
    assert abs(over.mean()) < 4 * over.std() / 40**0.5
    spread = np.std([n["confidence distance"].value for n in alike])
    assert 0.5 < np.mean([n["confidence distance"].error for n in alike]) / spread < 2


def test_the_worst_model_is_the_one_whose_members_are_told_best():
    found = Distributions(which="worst").analyse(run_of(leak=(0, 0, 3)), None)
    assert (found.numbers["client"].value, found.numbers["round"].value) == (2, 10)
    assert found.arrays["confidence members"].sum() == 60 and found.arrays["confidence non-members"].sum() == 90


def test_an_absent_client_and_one_without_outsiders_do_not_count():
    run = run_of()
    for a in run.signals.values():
        a[1, : min(1, a.shape[1] - 1)] = np.nan
    assert Distributions().analyse(run, None).arrays["confidence members"].sum() == 120
    assert Distributions().analyse(run_of(pool=np.maximum(POOL, 0)), None) is None
    assert Distributions().analyse(run_of(malicious=(2,)), None).arrays["confidence members"].sum() == 120


# -- generalisation error ------------------------------------------------------------------------------------------------------


def test_the_generalisation_error_is_that_of_the_naive_loop():
    run = run_of(leak=(0.5, 1, 2), own_parts=True)
    found = GeneralisationError(least=3).analyse(run, None)
    wanted = []
    for k in range(K):
        right = run.signals["margin"][1, k] > 0
        for c in range(4):
            of_class = [i for i in range(len(POOL)) if run.pool_y[i] == c]
            inside, outside = [i for i in of_class if POOL[i] == k], [i for i in of_class if run.outsider_of[i] == k]
            wanted.append((k, c, np.mean(right[inside]) - np.mean(right[outside])))
    assert np.allclose(found.arrays["error"], [abs(d) for *_, d in wanted])
    assert list(zip(found.arrays["client"], found.arrays["class"], strict=True)) == [(k, c) for k, c, _ in wanted]
    assert found.numbers["gap"].value == pytest.approx(np.mean([d for *_, d in wanted]))
    assert found.numbers["mean"].value == pytest.approx(found.arrays["error"].mean())
    assert GeneralisationError(least=40).analyse(run, None) is None


def test_the_error_of_the_gap_is_the_spread_over_fresh_runs():
    runs = [run_of(leak=(1, 1, 1), seed=s, own_parts=True) for s in range(40)]
    found = [GeneralisationError().analyse(run, None).numbers["gap"] for run in runs]
    spread = np.std([n.value for n in found])
    assert 0.7 < np.mean([n.error for n in found]) / spread < 1.4


# -- client models -------------------------------------------------------------------------------------------------------------


def test_local_and_global_models_are_looked_at_on_the_clients_own_samples():
    run = run_of()
    found = ClientModels().analyse(run, None)
    assert found.numbers["round"].value == 10
    for model, row in zip(MODELS, (None, 3), strict=True):
        for k in range(K):
            of = k if row is None else row
            loss, right = run.signals["loss"][1, of], run.signals["margin"][1, of] > 0
            inside, outside = k == POOL, POOL == -1
            told = auc(-np.r_[loss[inside], loss[outside]], np.r_[np.ones(60, bool), np.zeros(90, bool)])
            wanted = [loss[inside].mean(), loss[outside].mean(), right[inside].mean(), right[outside].mean(), told]
            wanted.append(advantage(loss[inside], loss[outside]))
            assert np.allclose([found.arrays[f"{model} {what}"][k] for what in WHAT], wanted)


def test_the_round_is_the_last_audited_one_up_to_the_one_asked_for():
    assert ClientModels(round=7).analyse(run_of(), None).numbers["round"].value == 5
    assert ClientModels(round=3).analyse(run_of(), None) is None


# -- on a board ----------------------------------------------------------------------------------------------------------------


class Overfitted(Folder):
    """A folder whose records hold what the three analyses found."""

    def __init__(self, root):
        super().__init__(root, {"none": 1.0, "cofedmid": 0.1})

    def add(self, defense, attack, seed, outcome="ok", **change):
        run = run_of(leak=(2, 2, 2) if defense == "none" else (0, 0, 0), seed=seed)
        made = {"distributions": Distributions(), "generalisation-error": GeneralisationError(), "client-models": ClientModels()}
        every = {label: analysis.analyse(run, None) for label, analysis in made.items()}
        found = {n: Found(numbers=dict(f.numbers), arrays=dict(f.units)) for n, f in every.items()}
        arrays = {f"{n}:{name}": a.astype(float) for n, f in every.items() for name, a in f.arrays.items()}
        return super().add(defense, attack, seed, outcome, arrays=arrays, **{"analyses": found, **change})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Overfitted(tmp_path_factory.mktemp("overfitted") / "results").fill(seeds=(0, 1))


def test_a_row_of_panels_is_drawn_for_every_defense(folder):
    (section, *_) = sections_of(folder)
    figure = distribution_figure(section, "distributions", EDGES, SIDES, oracle=False).draw(style)
    assert len(figure.axes) == len(section.rows) * len(EDGES) and len(section.rows) == 2
    assert [a.get_ylabel() for a in figure.axes[:: len(EDGES)]] == [r.label for r in section.rows]
    shares = figure.axes[0].patches[0].get_data().values
    both = [section.rows[0].findings("distributions", s).arrays["confidence members"] for s in (0, 1)]
    assert np.allclose(shares, sum(both) / sum(both).sum())


def test_the_cumulated_errors_of_all_seeds_are_drawn_a_line_a_defense(folder):
    (section, *_) = sections_of(folder)
    found = errors_of(section, "generalisation-error")
    assert {name: len(e) for name, e in found.items()} == {"none": 24, "cofedmid": 24}
    assert found["none"].mean() > found["cofedmid"].mean() and (np.diff(found["none"]) >= 0).all()
    (_, drawn) = GeneralisationError().draw(section, "generalisation-error")
    figure = drawn.draw(style)
    (axis,) = figure.axes
    assert {line.get_label(): len(line.get_xdata()) - 1 for line in axis.lines} == {"none": 24, "cofedmid": 24}


def test_the_table_of_the_models_has_a_row_a_defense_and_client(folder):
    text = board(folder, analyses=["client-models"])
    rows = rows_of(text, "**Local and global models**")
    assert [r["client"] for r in rows] == 2 * [str(k) for k in range(K)] and len({r["defense"] for r in rows[:K]}) == 1
    table = table_of(folder, "Local and global models", analyses=["client-models"])
    (section, *_) = sections_of(folder)
    means = [section.rows[0].findings("client-models", s).arrays["local train loss"][0] for s in (0, 1)]
    assert table.rows[0][2].mean == pytest.approx(np.mean(means))
    wanted = [{"label": "client-models", "name": "client-models", "params": {"defenses": ["none"]}}]
    assert {r["defense"] for r in rows_of(board(folder, analyses=wanted), "**Local and global models**")} == {"none"}


# -- in the engine -------------------------------------------------------------------------------------------------------------

SUITE = """
schema: 1
name: small
seeds: [0]
settings:
  - name: digits
    dataset: {name: digits, params: {test: 500, holdout: 500}}
    model: {name: mlp, params: {hidden: [16]}}
    federation: {clients: 3, rounds: 2, batch_size: 40, local_epochs: 2, optimizer: {lr: 0.1}%s}
    audit: {every: 1, nonmembers: 200, targets: [0, 1, 2]}
coalitions: [none]
defenses: [none]
attacks: [blackbox-loss]
"""


def records_of(folder, text):
    folder.mkdir()
    (folder / "small.yaml").write_text(text)
    results = folder / "results"
    said = CliRunner().invoke(cli, ["run", str(folder / "small.yaml"), "--results", str(results), "--no-plots"])
    assert said.exit_code == 0, said.output
    (record,) = [json.loads(p.read_text()) for p in (results / "records").glob("*.json")]
    return record


def test_they_wait_to_be_named():
    own = {c.name: c.load().by_default for c in Registry.discover().own("analysis")}
    waiting = sorted([*OVERFITTING, *OF_MEMBERS, "paired-differences", "tuned"])
    assert sorted(name for name, by_default in own.items() if not by_default) == waiting


def test_a_suite_that_names_them_has_them_and_one_that_does_not_keeps_its_signals(tmp_path):
    plain = records_of(tmp_path / "plain", SUITE % "")
    assert not {*plain["analyses"], *plain["identity"]["analyses"]} & {*OVERFITTING}
    assert sorted(plain["identity"]["signals"]) == ["loss"]
    named = records_of(tmp_path / "named", SUITE % ", validation: 0.1, test: 0.2" + f"analyses: [{', '.join(OVERFITTING)}]\n")
    found = named["analyses"]
    assert sorted(found) == sorted(OVERFITTING)
    assert 0 < found["generalisation-error"]["numbers"]["gap"]["error"] < 0.2
    assert found["client-models"]["numbers"]["round"]["value"] == 2
    assert 0 <= found["distributions"]["numbers"]["gradient norm distance"]["value"] <= 1
