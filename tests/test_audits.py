"""Sections with seeds that share a pool: calibrated attacks, candidates that are found, epsilon."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from boards import Folder, board, sections_of
from contests import judged
from running import finish, invoke, suite
from site_boards import marked

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.contract.board import Note, Table
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.audit_blocks import audit_blocks
from fedbench.leaderboard.comparison.cells import Key, snapshot_of
from fedbench.leaderboard.comparison.compare import compare
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.statistics.audits import (
    LOG_PROBABILITY,
    TOGETHER,
    Calibrated,
    Pool,
    epsilon_bound,
    found_by,
    pool_of,
)
from fedbench.leaderboard.statistics.calibration import lira, rmia
from fedbench.leaderboard.statistics.privacy_claims import privacy_audit
from fedbench.leaderboard.statistics.scores import SectionScores
from fedbench.leaderboard.statistics.verdict import LeakStatistics
from fedbench.leaderboard.tables.answer import sentences
from fedbench.leaderboard.tables.auditors import auditors_table
from fedbench.leaderboard.tables.common import plain_text
from fedbench.leaderboard.tables.common import sentence as written
from fedbench.leaderboard.tables.differential_privacy import claimed

SEEDS, SAMPLES = range(16), 60


def coins(seed):
    return np.random.default_rng(seed).random(SAMPLES) < 0.5


def contest(gain, attacks=("blackbox-loss", "fedmia-ii")):
    """Two rows: the undefended one leaks by ``gain``, hidden by each candidate's own level."""
    level = 3 * np.random.default_rng(99).normal(size=SAMPLES)
    scores = {}
    for i, (label, share) in enumerate({"none": 1.0, "half": 0.5}.items()):
        scores[label] = {}
        for a, attack in enumerate(attacks):
            by_seed = {}
            for seed in SEEDS:
                noise = np.random.default_rng([seed, i, a]).normal(size=SAMPLES)
                by_seed[seed] = {0: level + noise + gain * share * coins(seed)}
            scores[label][attack] = by_seed
    return judged(scores, lambda seed: np.where(coins(seed), MEMBER, OFL))


def test_calibrated_scores_are_those_of_the_pool_seed_by_seed():
    section = contest(gain=1.0)
    scores = Calibrated(section.scores)
    raw = np.stack(
        [section.scores.candidates(s, [0])[0]["none", "blackbox-loss"].scores for s in SEEDS]
    )
    member = np.stack([coins(seed) for seed in SEEDS])
    for seed in (0, 9):
        candidates = scores.candidates(seed, [0])[0]
        assert candidates["none", "blackbox-loss, LiRA"].scores == pytest.approx(
            lira(raw, member, ~member)[seed]
        )
        assert candidates["none", "blackbox-loss, RMIA"].scores == pytest.approx(
            rmia(raw, member, ~member)[seed]
        )
        assert ("none", "fedmia-ii, RMIA") not in candidates
        assert (candidates["none", TOGETHER].kind == np.where(coins(seed), MEMBER, OFL)).all()


def test_calibration_finds_a_planted_leak_that_the_levels_of_candidates_hide():
    section = contest(gain=1.5)
    general = section.worst_cases.of("none").worst
    strongest = section.calibrated.worst_cases.of("none").worst
    assert strongest.interval.mean > 0.85 > general.interval.mean + 0.15
    assert section.calibrated.pairwise.ranks == {"half": (1, 1), "none": (2, 2)}
    scores = Calibrated(section.scores)
    by_share = [found_by(scores, label, "fedmia-ii", 1).shares.mean() for label in ("none", "half")]
    assert by_share[0] > 0.15 > by_share[1] > 0.02
    assert found_by(scores, "none", "seqmia", 1) is None


def test_canaries_have_a_share_of_their_own():
    leaking = np.arange(SAMPLES) < 12
    member = np.stack([coins(seed) for seed in SEEDS])
    noise = np.random.default_rng(5).normal(size=member.shape)
    pool = Pool(
        seeds=tuple(SEEDS),
        ids=np.arange(SAMPLES),
        scores=noise + 9.0 * (member & leaking),
        member=member,
        outside=~member,
        canary=leaking,
    )
    scores = Calibrated(contest(gain=0.0).scores)
    scores.pools = {(0, ("none", "fedmia-ii")): pool}
    found = found_by(scores, "none", "fedmia-ii", 1)
    assert found.canaries > 0.95 and found.shares.mean() < 0.25
    pool.canary[:] = False
    assert np.isnan(found_by(scores, "none", "fedmia-ii", 1).canaries)


def test_scores_without_a_leak_stay_at_chance_and_show_no_epsilon():
    section = contest(gain=0.0)
    scores = Calibrated(section.scores)
    bound = epsilon_bound(scores, "none")
    assert bound.epsilon == 0 and bound.limit > 2
    found = found_by(scores, "none", "fedmia-ii", 1)
    assert found.shares.mean() < 0.03 and found.tenth < 0.06
    parts = section.calibrated.leaks.parts
    aucs = [part.entries["none", "fedmia-ii, LiRA"].auc for part in parts]
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.04)


def null(seed, federations=16):
    """One row of one attack without a leak."""
    rng = np.random.default_rng(seed)
    heads = rng.random((federations, SAMPLES)) < 0.5
    values = 3 * rng.normal(size=SAMPLES) + rng.normal(size=heads.shape)
    by_seed = {f: {0: of_federation} for f, of_federation in enumerate(values)}
    kinds = np.where(heads, MEMBER, OFL)
    return judged({"none": {LOG_PROBABILITY: by_seed}}, lambda f: kinds[f])


CALIBRATED = [*(f"{LOG_PROBABILITY}, {way}" for way in ("LiRA", "offline LiRA", "RMIA")), TOGETHER]


def test_an_attack_that_is_left_out_counts_in_no_calibrated_number():
    """It has fewer seeds here, and is the first by name."""
    two = contest(gain=1.0, attacks=("blackbox-loss", "fedmia-ii"))
    aucs = {}
    for name in ("all", "without"):
        rows = []
        for row in two.rows:
            entries = dict(row.entries)
            if name == "all":
                records = {s: r for s, r in row.entries["fedmia-ii"].records.items() if s < 9}
                leaky = replace(row.entries["fedmia-ii"], attack="aaa", records=records)
                entries = {"aaa": leaky, **entries}
            rows.append(replace(row, entries=entries, left_out=frozenset({"aaa"})))
        scores = SectionScores(rows, two.scores.units)
        section = LeakStatistics(scores, ["blackbox-loss", "fedmia-ii"])
        assert set(section.calibrated.attacks) == {
            *CALIBRATED,
            "fedmia-ii, LiRA",
            "fedmia-ii, offline LiRA",
        }
        leaks = section.calibrated.leaks
        aucs[name] = [leaks.of("none", attack).auc for attack in section.calibrated.attacks]
    assert aucs["all"] == aucs["without"]


def test_errors_cover_the_spread_of_federations_that_judge_each_other():
    """Without the factor of ``shared`` the spread of LiRA's AUC is 1.4 errors."""
    deviations = {attack: [] for attack in CALIBRATED}
    for seed in range(160):
        leaks = null(seed).calibrated.leaks
        for attack, of_attack in deviations.items():
            auc = leaks.estimate("none", dict.fromkeys(range(16), (attack, 1)))
            of_attack.append((auc.mean - 0.5) / auc.error)
    spreads = {attack: np.sqrt(np.mean(np.square(d))) for attack, d in deviations.items()}
    assert all(0.7 < spread < 1.1 for spread in spreads.values()), spreads


def test_the_tenth_that_is_chosen_on_other_federations_is_found_no_more_often_without_a_leak():
    tenths = []
    for seed in range(60):
        scores = Calibrated(null(seed).scores)
        tenths.append(found_by(scores, "none", LOG_PROBABILITY, 1).tenth)
    assert np.mean(tenths) == pytest.approx(0.01, abs=0.005)
    few = found_by(Calibrated(null(0, federations=4).scores), "none", LOG_PROBABILITY, 1)
    assert np.isnan(few.tenth)


def test_low_ratios_never_mean_members():
    leaks = null(0).calibrated.leaks
    signs = {attack: set(leaks.of("none", attack).signs.values()) for attack in CALIBRATED}
    assert signs == {attack: {1} for attack in CALIBRATED}
    assert any(excess < 0 for excess in leaks.excesses["none", TOGETHER].values())


def test_errors_of_pairs_of_rows_have_the_factor_too():
    (part, *_) = contest(gain=1.0).calibrated.leaks.parts
    for key, entry in part.entries.items():
        pulls = part.pulls([part.position[key]])[0]
        assert np.linalg.norm(pulls) == pytest.approx(entry.error)
        assert pulls[part.members :] == pytest.approx(entry.pulls)


def test_a_leak_shows_an_epsilon_below_the_limit_of_its_coins():
    bound = epsilon_bound(Calibrated(contest(gain=8.0).scores), "none")
    assert 1.0 < bound.epsilon <= bound.limit
    assert bound.guesses.canaries == SAMPLES * 8


@pytest.mark.parametrize("delta", [0.0, 1e-320])
def test_a_claim_of_pure_privacy_is_held_against_all_coins(delta):
    scores = Calibrated(contest(gain=8.0).scores)
    bound = epsilon_bound(scores, "none", delta)
    assert bound.guesses.canaries == SAMPLES * 8
    assert bound.epsilon >= epsilon_bound(scores, "none").epsilon


def test_a_pool_has_the_clients_samples_that_every_seed_asks_about():
    def candidates(ids, kinds):
        n = len(ids)
        return SimpleNamespace(
            ids=np.array(ids),
            kind=np.array(kinds),
            scores=10.0 * np.array(ids),
            canary=np.zeros(n, bool),
        )

    first = candidates([5, 1, 9, 7], [MEMBER, OFL, IFL, OFL])
    pool = pool_of({3: first, 4: candidates([1, 9, 5], [EXCLUDED, IFL, OFL])})
    assert pool.ids.tolist() == [1, 5] and pool.scores.tolist() == [[10, 50], [10, 50]]
    assert pool.member.tolist() == [[False, True], [False, False]]
    assert pool.outside.tolist() == [[True, False], [False, True]]


class PoolFolder(Folder):
    """Federations of one pool of 80 samples a target, each a member by a fair coin."""

    def add(self, defense, attack, seed, **change):
        described = {"federation": {"test_by": "coin"}, "data_seed": 0}
        return super().add(defense, attack, seed, **{"described": described, **change})

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in targets:
            heads = np.random.default_rng([seed, t]).random(len(arrays[f"t{t}_kind"])) < 0.5
            arrays[f"t{t}_kind"] = np.where(heads, MEMBER, OFL).astype(np.int8)
            arrays[f"t{t}_scores"] += self.leak[defense] * heads
        return arrays, scored, correct


@pytest.fixture(scope="module")
def claiming(tmp_path_factory):
    """Rows that leak everything or nothing, and their claims."""
    said = {
        "none": {},
        "liar": {"epsilon": [0.5, 1.0], "delta": 1e-5, "unit of privacy": "example"},
        "loose": {"epsilon": 900.0, "delta": 1e-5, "unit of privacy": "example"},
        "honest": {"epsilon": 0.5, "delta": 1e-5, "unit of privacy": "example"},
        "of clients": {"epsilon": 1.0, "delta": 1e-5, "unit of privacy": "client"},
        "of any": {"epsilon": 1.0, "delta": 1e-5},
        "coarse": {"epsilon": 1.0, "delta": 0.1, "unit of privacy": "example"},
    }
    leak = dict.fromkeys(said, 40.0) | {"honest": 0.0}
    folder = PoolFolder(tmp_path_factory.mktemp("claims") / "r", leak, ("fedmia-ii",))
    for label, facts in said.items():
        for seed in range(8):
            terms = {"neighbours": "an example leaves"} if facts else {}
            folder.add(label, "fedmia-ii", seed, facts=facts | terms)
    marked(folder)
    return folder


def test_a_bound_above_the_claim_of_an_example_refutes_the_row_everywhere(claiming):
    section = next(s for s in sections_of(claiming) if s.row("liar"))
    audits = section.privacy_audits
    assert {label for label, audit in audits.items() if audit.refuted} == {"liar"}
    shown = audits["liar"].bound.epsilon
    assert 4 < shown <= audits["liar"].bound.limit and audits["honest"].bound.epsilon < 0.5
    # of the others there is no claim that coins of samples judge, or no coin that counts
    assert {label for label, audit in audits.items() if audit.claimed is None} == {
        "none",
        "of clients",
        "of any",
    }
    assert audits["coarse"].bound is None and audits["coarse"].delta == 0.1
    sentence = f"an epsilon of 1 at delta 1e-05, and the coins show at least {shown:.2f}"
    assert sentences(section)[0] == written(
        "**Refuted**: {} claims " + sentence + " (95 %).", "liar"
    )
    claims = {row.label: plain_text(claimed(section, row)) for row in section.rows}
    assert claims["liar"].endswith(f"leaves; refuted: \u03b5 \u2265 {shown:.2f}")
    assert claims["loose"].endswith("leaves") and claims["none"] == ""
    (table,) = auditors_table(section)
    assert {plain_text(row[0]): plain_text(row[-1]) for row in table.rows} == {
        **dict.fromkeys(("none (undefended)", "of clients", "of any"), ""),
        "liar": "1 at \u03b4 = 1e-05 refuted",
        "loose": "900 at \u03b4 = 1e-05",
        "honest": "0.5 at \u03b4 = 1e-05",
        "coarse": "1 at \u03b4 = 0.1",
    }
    snapshot = snapshot_of(load_records(claiming.root))
    gate = compare(snapshot, snapshot)
    assert gate.counts["refuted"] == 1 and gate.failing(["refuted"])
    assert gate.rows[0].key == Key("iid", "pair", "liar", "", "")
    assert gate.rows[0].reasons == (f"claims {sentence}",)


def test_the_candidates_found_most_often_are_listed_and_too_few_federations_named(
    claiming, tmp_path, words_of
):
    lines = json.loads(words_of("show", claiming.root, "liar", "--vulnerable", "--json"))
    assert len(lines) == 20 and {line["defense"] for line in lines} == {"liar"}
    shares = [line["found"] / line["federations"] for line in lines]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1
    member = np.stack(
        [
            loaded.candidates(lines[0]["target"]).kind[lines[0]["sample"] % 1000] == MEMBER
            for loaded in load_records(claiming.root)
            if loaded.record.defense.label == "liar"
        ]
    )
    assert member.sum() == lines[0]["federations"]
    assert "liar" in words_of("show", claiming.root, "liar", "--vulnerable")
    few = PoolFolder(tmp_path / "few", {"none": 1.0, "mixup": 1.0}, ("fedmia-ii",)).fill(range(3))
    marked(few)
    needed = "n/a: 8 federations of one pool are needed, there are 3"
    assert needed in words_of("show", few.root, "--vulnerable")
    (note,) = auditors_table(sections_of(few)[0])
    assert plain_text(note.text) == f"Calibrated attacks: {needed}."


def test_the_auditors_page_has_the_bounds_of_a_pool_and_says_where_there_are_too_few(
    claiming, tmp_path
):
    (calibrated,) = auditors_table(next(s for s in sections_of(claiming) if s.row("liar")))
    blocks = audit_blocks(source_of(claiming.root))
    (table,) = (b for b in blocks if isinstance(b, Table) and b.title == "Claims and bounds")
    names = [plain_text(column.name) for column in table.columns]
    for name in ("\u03b5 at least", "\u03b5 claimed"):
        i = [plain_text(column.name) for column in calibrated.columns].index(name)
        expected = {plain_text(row[0]): row[i] for row in calibrated.rows}
        assert {plain_text(row[0]): row[names.index(name)] for row in table.rows} == expected
    few = marked(PoolFolder(tmp_path / "few", {"none": 1.0}, ("fedmia-ii",)).fill(range(3)))
    notes = [plain_text(b.text) for b in audit_blocks(source_of(few)) if isinstance(b, Note)]
    assert sum("No lower bound on epsilon was computed: it takes 8" in text for text in notes) == 1


def test_clients_that_do_not_defend_are_no_part_of_a_claim(claiming):
    section = next(s for s in sections_of(claiming) if s.row("liar"))
    scores = section.comparison.calibrated.scores
    outside = SectionScores(section.rows, [*scores.units, (0, 3)])
    audit = privacy_audit(Calibrated(outside), section.row("liar"))
    assert audit.claimed is None and not audit.refuted


POOL = {
    "name": "pool",
    "dataset": {"name": "digits", "params": {"test": 1200, "holdout": 100, "label_noise": 0.3}},
    "model": {"name": "mlp", "params": {"hidden": [8]}},
    "data_seed": 3,
    "federation": {
        "clients": 2,
        "rounds": 1,
        "batch_size": 50,
        "test": 0.5,
        "test_by": "coin",
        "optimizer": {"lr": 0.2},
    },
    "audit": {"nonmembers": 1000, "outside": 500},
}


@pytest.mark.slow
def test_seeds_of_one_pool_have_the_same_samples_and_coins_of_their_own(tmp_path):
    path = suite(tmp_path, settings=[POOL], coalitions=["uniform"], seeds=list(range(8)))
    invoke(path, "--results", tmp_path / "r", "--workers", "1")
    pools = {}
    for loaded in load_records(tmp_path / "r"):
        c = loaded.candidates(0)
        counted = (c.kind == MEMBER) | (c.kind == OFL)
        pools[loaded.record.seed] = set(c.ids[counted].tolist()), set(c.ids[c.kind == MEMBER])
    samples, members = zip(*pools.values(), strict=True)
    assert all(ids == samples[0] for ids in samples) and len(samples[0]) > 150
    overlaps = [len(a & b) / len(samples[0]) for a, b in combinations(members, 2)]
    assert 0.15 < min(overlaps) <= np.mean(overlaps) == pytest.approx(0.25, abs=0.03)
    results, usual = (SimpleNamespace(root=root) for root in (tmp_path / "r", finish(tmp_path)))
    assert sections_of(results)[0].shares_pool and not sections_of(usual)[0].shares_pool
    text = board(results)
    assert "Calibrated attacks" in text and "over 8 federations of one pool" in text


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("federation", {"test": 0.0}, "by a fair coin: set test"),
        ("audit", {"nonmembers": 40, "outside": 50}, r"50 of the \d+ samples that client"),
    ],
)
def test_coins_that_are_not_fair_are_refused(tmp_path, part, change, message):
    setting = {**POOL, part: {**POOL[part], **change}}
    with pytest.raises(UserError, match=message):
        invoke(suite(tmp_path, settings=[setting]), "--results", tmp_path / "r")
