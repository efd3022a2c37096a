"""The maximum over attacks and rounds on a board, beside its null and beside the papers'."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from boards import CLIENTS, MEMBERS, Folder, board, row_of, rows_of, sections_of, table_of

from fedbench.core import UserError
from fedbench.core.metrics import auc
from fedbench.core.metrics.bestround import round_report
from fedbench.core.metrics.maximum import SHUFFLES, maximum
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.scores import MaximumScores, RoundScores
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.maximum import null_of_mean, row_maximum
from fedbench.leaderboard.statistics.papers import comparable, published
from fedbench.leaderboard.statistics.published import match
from fedbench.leaderboard.tables.published import match_blocks

TITLE = "Maximum over attacks and rounds"
ROUNDS = 4
SINGLE = ("threshold-loss", "threshold-entropy")


class Looking(Folder):
    """A folder whose attacks score every round (those in ``single``) or a trajectory; every record knows its maximum."""

    def __init__(self, root, leak, attacks=(*SINGLE, "fedmia-ii"), single=SINGLE, view="server", coalition="uniform"):
        self.single, self.view, self.coalition = single, view, coalition
        super().__init__(root, leak, attacks)

    def whose(self, defense):
        return ("none", (), CLIENTS) if defense == "none" else (self.coalition, MEMBERS, MEMBERS)

    def add(self, defense, attack, seed, outcome="ok", **change):
        self.defense, self.attack, self.seed = defense, attack, seed
        return super().add(defense, attack, seed, outcome, **{"view": self.view, **change})

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in scored:
            kind, last = arrays[f"t{t.target}_kind"], arrays[f"t{t.target}_scores"]
            rng = np.random.default_rng([seed, t.target, *attack.encode(), *defense.encode(), 1])
            by_round = np.stack([*(last + rng.normal(size=len(last)) for _ in range(ROUNDS - 1)), last])
            if attack in self.single:
                facts = dataclasses.asdict(round_report(by_round, kind == 0, rng))
                t.rounds = RoundScores(best_round=10 * (1 + facts.pop("best_index")), **facts)
            found = maximum(by_round if attack in self.single else last[None], kind, shuffle_rng(seed, t.target))
            t.maximum = MaximumScores(auc=found.auc, advantage=found.advantage, rounds=found.looks)
            arrays |= {
                f"t{t.target}_null_auc": found.null_auc.astype(np.float32),
                f"t{t.target}_null_advantage": found.null_advantage.astype(np.float32),
            }
        return arrays, scored, correct


LEAK = {"none": 1.0, "membershield": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Looking(tmp_path_factory.mktemp("maximum") / "results", LEAK).fill(seeds=(0, 1))


@pytest.fixture(scope="module")
def section(folder):
    (found,) = sections_of(folder)
    return found


def test_the_table_is_the_maximum_over_attacks_beside_the_same_maximum_of_every_shuffle(folder, section):
    row = row_of(section, "membershield")
    values, nulls = {}, {}
    for unit in section.units:
        entries = list(row.entries.values())
        values[unit] = max(e.maxima[unit].auc for e in entries)
        nulls[unit] = np.max([e.null_maxima(unit)[0] for e in entries], axis=0)
    found = row_maximum(row)
    assert found.auc.found.mean == pytest.approx(np.mean(list(values.values()))) and found.looks == (2 * ROUNDS + 1,) * 2
    assert found.auc.null_mean == pytest.approx(np.mean(list(nulls.values()))) and found.auc.found.n == 4
    assert found.auc.null_mean > 0.55  # nine looks at 40 against 60
    table = table_of(folder, TITLE)
    shown = {str(r[0] if isinstance(r[0], str) else r[0][0]): r for r in table.rows}
    assert shown["membershield"][1].mean == found.auc.found.mean and shown["membershield"][2].mean == found.auc.null_mean
    assert shown["membershield"][3].mean == pytest.approx(found.auc.found.mean - found.auc.null_mean)
    assert shown["membershield"][4].mean == found.advantage.found.mean


def test_what_the_board_says(folder):
    lines = rows_of(board(folder), f"**{TITLE}**")
    assert [list(line.values()) for line in lines] == GOLDEN
    assert list(lines[0]) == [
        "defense", "max auR", "null of auR", "excess auR", "max Adv", "null of Adv", "excess Adv", "looks",
    ]  # fmt: skip


GOLDEN = [
    ["membershield", "0.572 ± 0.455", "0.557 (0.622)", "+0.015 within null", "0.196 ± 0.847", "0.196 (0.287)",
     "+0.000 within null", "9"],
    ["none (undefended)", "0.965 ± 0.098", "0.546 (0.610)", "+0.419", "0.833 ± 0.529", "0.183 (0.267)", "+0.650", "9"],
]  # fmt: skip


def test_a_row_that_leaks_nothing_is_within_its_null_and_one_that_leaks_is_not(section):
    quiet, loud = row_maximum(row_of(section, "membershield")), row_maximum(row_of(section, "none"))
    assert quiet.auc.found.mean > 0.55 and quiet.auc.within and quiet.advantage.within
    assert loud.auc.p == loud.advantage.p == pytest.approx(1 / (1 + SHUFFLES)) and not loud.auc.within
    assert abs(quiet.auc.excess) < 0.05 < loud.auc.excess


def test_it_appears_where_two_attacks_score_every_round_and_records_know_their_maximum(tmp_path):
    one = Looking(tmp_path / "one", LEAK, single=SINGLE[:1]).fill(seeds=(0,))
    old = Folder(tmp_path / "old", LEAK, (*SINGLE, "fedmia-ii")).fill(seeds=(0,))
    two = Looking(tmp_path / "two", LEAK).fill(seeds=(0,))
    assert [TITLE in board(f) for f in (one, old, two)] == [False, False, True]


def test_other_shuffles_cannot_be_put_together(tmp_path):
    folder = Looking(tmp_path / "results", LEAK).fill(seeds=(0,))
    half = {f"t{t}_null_{of}": np.full(100, 0.5, np.float32) for t in MEMBERS for of in ("auc", "advantage")}
    folder.add("membershield", "fedmia-ii", 0, arrays=half)
    with pytest.raises(UserError, match=r"entropy-0.json: its null has other shuffles than that of .*fedmia_ii-0.*--rerun"):
        board(folder)


def test_targets_of_a_seed_move_together_and_seeds_do_not():
    rng = np.random.default_rng(0)
    draws = {(seed, t): rng.normal(size=400) for seed in (0, 1) for t in (0, 1, 2)}
    same = null_of_mean({u: d for u, d in draws.items() if u[0] == 0})
    both = null_of_mean(draws)
    assert same.std() == pytest.approx(1, abs=0.1) and both.std() == pytest.approx(1 / np.sqrt(2), abs=0.1)
    assert both.mean() == pytest.approx(np.mean(list(draws.values())))


def test_the_mean_over_targets_that_share_non_members_is_not_too_sure():
    """Three targets against the same strangers, a score that knows nothing: their AUCs rise and fall together."""
    above = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        strangers, kind = rng.normal(size=40), np.repeat([0, 1], [200, 40])
        scores = [np.concatenate([rng.normal(size=200), strangers]) for _ in range(3)]
        nulls = {(seed, t): maximum(s[None], kind, shuffle_rng(seed, t)).null_auc for t, s in enumerate(scores)}
        null, mean = null_of_mean(nulls), np.mean([auc(s, kind == 0) for s in scores])
        above += 1 + (null >= mean).sum() <= 0.05 * (1 + len(null))
    assert above <= 8  # a binomial of 60 at .05 exceeds it once in a hundred


# --- beside the paper

ENTRY = {
    "source": "membershield", "setting": "iid", "where": {"table": "Table 2"}, "defenses": {"none": "none"},
}  # fmt: skip


def test_the_papers_mean_over_clients_stands_beside_ours_and_its_null(section):
    (found,) = match(ENTRY, [section])
    pair = next(p for p in found.of("auc_max") if p.defense == "membershield")
    row = row_maximum(row_of(section, "membershield"))
    assert pair.paper == pytest.approx(np.mean([0.56, 0.60, 0.58, 0.56, 0.57])) and pair.paper_range == (0.56, 0.60)
    assert (pair.ours.value, pair.ours.null) == (row.auc.found.mean, row.auc.null_mean)
    advantage = next(p for p in found.of("advantage_max") if p.defense == "membershield")
    assert (advantage.ours.value, advantage.paper_range) == (row.advantage.found.mean, (0.11, 0.16))
    assert len(found.of("auc_max")) == len(found.of("advantage_max")) == 22 and found.coalition == "uniform"
    text = render(match_blocks(found))
    line = next(x for x in text.splitlines() if x.startswith("| membershield") and "0.56 to 0.6" in x)
    assert f"{row.auc.null_mean:.3f}" in line and f"{row.auc.excess:.3f}" in line
    accuracy = next(p for p in found.of("test_acc") if p.defense == "membershield")
    assert accuracy.paper == 0.66 and accuracy.ours.value == row_of(section, "membershield").accuracy.mean
    runtime = next(p for p in found.of("runtime") if p.defense == "membershield")
    assert runtime.paper == pytest.approx(1780.29 / 1973.62) and runtime.ours.value == pytest.approx(1.5)


def test_an_adversary_of_the_paper_is_one_view(section, tmp_path):
    local = {**ENTRY, "where": {"table": "Table 3"}}
    (found,) = match(local, [section])
    assert all(p.ours is None for p in found.of("auc_max"))  # the section is the server's
    (client,) = sections_of(Looking(tmp_path / "results", LEAK, view="client").fill(seeds=(0, 1)))
    (found,) = match(local, [section, client])
    done = {p.defense: p.ours.value for p in found.of("auc_max") if p.ours is not None}
    assert done == {d: row_maximum(row_of(client, d)).auc.found.mean for d in LEAK}
    (adaptive,) = match({**ENTRY, "where": {"table": "Table 12", "dataset": "cifar10", "model": "cnn2"}}, [section, client])
    (pair,) = adaptive.of("auc_max")
    assert pair.ours.value == row_maximum(row_of(section, "membershield")).auc.found.mean and pair.paper_range == (0.57, 0.71)


@pytest.mark.parametrize(("table", "partition", "defense", "attack", "metric", "value"), [
    ("Table 3", "dirichlet:1", "dp_sgd:epsilon=1000", "local_adversary:client1", "auc_max", "0.53"),
    ("Table 4", "dirichlet:1", "kd", "", "runtime_s", "10137.03"),
    ("Table 6", "dirichlet:1", "relaxloss", "global_adversary:client3", "advantage_max", "0.38"),
    ("Table 8", "dirichlet:1", "dp_sgd:epsilon=1000", "global_adversary:client5", "advantage_max", "0.07"),
    ("Table 9", "dirichlet:1", "dp_sgd:epsilon=1000", "local_adversary:client4", "auc_max", "0.52"),
    ("Table A.1", "dirichlet:0.1", "membershield", "global_adversary:client4", "advantage_max", "0.18"),
    ("Table A.4", "dirichlet:0.5", "none", "local_adversary:client3", "auc_max", "0.92"),
    ("Table A.7", "dirichlet:0.5", "membershield", "", "test_acc", "0.78"),
    ("Table A.8", "dirichlet:0.1", "none", "local_adversary:client5", "advantage_max", "0.72"),
])  # fmt: skip
def test_published_maxima(table, partition, defense, attack, metric, value):
    wanted = {"table": table, "partition": partition, "defense": defense, "attack": attack, "metric": metric}
    (row,) = (r for r in published("membershield") if wanted.items() <= r.items())
    assert row["mean"] == value


def test_every_published_row_has_five_clients_and_every_table_its_rows():
    rows = comparable(published("membershield"))
    counts = {t: sum(r["table"] == t and r["metric"] == "auc_max" for r in rows) for t in {r["table"] for r in rows}}
    even = {"Table 2": 22, "Table 4": 13, "Table 6": 22, "Table 8": 22, "Table 12": 4}
    odd = {"Table 3": 21, "Table 5": 13, "Table 7": 22, "Table 9": 22}
    assert counts == {**even, **odd, **{f"Table A.{i}": 4 for i in range(1, 9)}}
    assert sum(r["metric"] == "auc_max" for r in published("membershield")) == 5 * sum(counts.values())
    keys = [tuple(v for c, v in r.items() if c not in ("mean", "std")) for r in published("membershield")]
    assert len(set(keys)) == len(keys) and all(float(r["mean"]) > 0 for r in published("membershield"))
