"""Every registered attack in a federation that leaks, asked about members that nobody trained on: it finds nothing there.

The whole engine takes part, from the suite's file to the records of ``fedbench run``. Whoever registers an attack has it
tested here; one that scores in none of the settings fails the suite.

Given the candidates of a target, which of the hold-out samples are called members is a fair draw, its own for each target
and seed, and nothing in the training depends on it. The units (a target of a seed) are therefore independent although they
share hold-out samples and a training, and each has the exact distribution of a rank statistic: of Mann and Whitney for the
AUC, the negative hypergeometric one for the members above the r-th largest non-member.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML
from running import invoke
from scipy.stats import nhypergeom

from fedbench.core import IFL, MEMBER, OFL, ActiveAttack
from fedbench.core.metrics import auc, tf01, tpr_at_fpr
from fedbench.core.metrics.counts import allowed_false_positives
from fedbench.core.population.target import EVERYBODY
from fedbench.core.registry.components import Registry

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # tests/test_null.py has the quick null tests

REGISTERED = [c.name for c in Registry.discover().own("attack")]
FOLLOWING = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")
ON_MEAN = [f"{a}-on-mean" for a in FOLLOWING] + [f"{a}-on-mean-class" for a in FOLLOWING]
VARIANTS = [f"{a}-class" for a in FOLLOWING] + ON_MEAN
ATTACKS = [*REGISTERED, *VARIANTS]
PARAMS = {
    "seqmia": {"epochs": 5},  # a net that learns for long takes longer to find as little
    "adaptive-membershield": {"theta": 0.1},  # nobody here trains on the soft labels of its default
}
WEAK = {"shadow"}  # its net learns too little from the few shadow samples that digits has left
OF_SETTING = {"clients": {0, 1, 2, 3}, "honest": {EVERYBODY.code}, "coalition": {0, 1}}  # the targets
LARGEST_Z, LEAST_CHANCE = 4.0, 3e-5  # four standard deviations, and the chance beyond them on one side
FPR = 0.01  # the hold-out is too small for 0.1 % of one unit


@dataclass(frozen=True)
class Unit:
    """What an attack said of one target's candidates in one seed, members against outside non-members."""

    scores: np.ndarray
    member: np.ndarray

    @property
    def sides(self) -> tuple[int, int]:
        """Members and non-members."""
        return int(self.member.sum()), int((~self.member).sum())

    def variance(self) -> float:
        """Of the AUC without a leak, given the ties (Lehmann, Nonparametrics 1975, section 1.4)."""
        (m, n), total = self.sides, len(self.scores)
        tied = np.unique(self.scores, return_counts=True)[1].astype(float)
        return (total + 1 - ((tied**3 - tied).sum() / total / (total - 1))) / 12 / m / n


def deviations(units: Sequence[Unit]) -> float:
    """By how many standard deviations the mean AUC lies above one half; 0 where every score is the same."""
    excess = sum(auc(u.scores, u.member) - 0.5 for u in units)
    spread = np.sqrt(sum(u.variance() for u in units))
    return float(excess / spread) if spread else 0.0


def found(units: Sequence[Unit], fpr: float) -> int:
    """Members above each unit's conformal threshold, of all units together."""
    return sum(round(tpr_at_fpr(u.scores, u.member, fpr) * u.sides[0]) for u in units)


def expected(units: Sequence[Unit], fpr: float) -> float:
    """How many those are without a leak and without ties (which leave fewer): m (k + 1) / (n + 1) of each unit."""
    return sum(m * (allowed_false_positives(n, fpr) + 1) / (n + 1) for m, n in (u.sides for u in units))


def chance(units: Sequence[Unit], fpr: float, least: int) -> float:
    """That at least so many are found without a leak."""
    total = np.ones(1)
    for m, n in (u.sides for u in units):
        law = nhypergeom(m + n, m, allowed_false_positives(n, fpr) + 1)
        total = np.convolve(total, law.pmf(np.arange(m + 1)))
    return float(total[least:].sum())


def pooled(units: Sequence[Unit]) -> Unit:
    """As boards pool them for TF01. No unit is favoured: all have as many members for each non-member."""
    return Unit(np.concatenate([u.scores for u in units]), np.concatenate([u.member for u in units]))


@dataclass(frozen=True)
class Ran:
    """A results folder, and what `fedbench run` said."""

    folder: Path
    said: str

    def cells(self, attack: str) -> list[dict[str, Any]]:
        """The attack's records, with the path of the scores beside each."""
        every = [json.loads(p.read_text()) | {"path": p} for p in sorted((self.folder / "records").glob("*.json"))]
        return [r for r in every if r["attack"]["label"] == attack]

    def units(self, attack: str) -> list[Unit]:
        """Every target of every seed."""
        out = []
        for cell in self.cells(attack):
            with np.load(cell["path"].with_suffix(".npz")) as arrays:
                for target in cell["targets"]:
                    scores, kind = (arrays[f"t{target['target']}_{name}"] for name in ("scores", "kind"))
                    counted = np.isin(kind, (MEMBER, OFL))
                    out.append(Unit(scores[counted], kind[counted] == MEMBER))
        return out


def unscored(ran: Ran, attacks: Sequence[str]) -> dict[str, list[str]]:
    """The attacks that scored in no setting -> what became of each of their cells."""
    outcomes = {a: [(r["outcome"], r["reason"]) for r in ran.cells(a)] for a in attacks}
    return {
        a: [f"{outcome}: {reason}" for outcome, reason in found] for a, found in outcomes.items()
        if not any(outcome == "ok" for outcome, _ in found)
    }  # fmt: skip


def listed(label: str) -> dict[str, Any]:
    """An attack, or a variant of one, as a suite lists it."""
    name = label.removesuffix("-class").removesuffix("-on-mean")
    params = PARAMS.get(name, {}) | ({"normalise": "class"} if label.endswith("-class") else {})
    return {"name": name, "label": label, "params": params | ({"view": "coalition"} if "-on-mean" in label else {})}


def ran(folder: Path, members_from: str, seeds: int, outside: int = 300) -> Ran:
    """Every registered attack in the one of the settings where it can act; both federations learn, and overfit."""
    registry = Registry.discover()
    active = [a for a in REGISTERED if issubclass(registry.get("attack", a).load(), ActiveAttack)]
    passive = [a for a in ATTACKS if a not in (*active, *ON_MEAN)]
    common = {
        "dataset": {"name": "digits", "params": {"test": 297, "holdout": 900, "label_noise": 0.3}},
        "model": {"name": "mlp", "params": {"hidden": [64, 32]}},
        "federation": {
            "clients": 5, "rounds": 20, "local_epochs": 5, "batch_size": 20, "optimizer": {"lr": 0.1, "momentum": 0.9},
        },
    }  # fmt: skip
    clients = {
        "every": 5, "nonmembers": 300, "outside": outside, "targets": [0, 1, 2, 3], "members_from": members_from,
        "shadow": {"samples": 50, "models": 4, "epochs": 20},
    }  # fmt: skip
    pair = {"every": 5, "nonmembers": 300, "outside": outside, "members_from": members_from}
    together = {"every": 20, "targets": "honest", "members": 400, "nonmembers": 500, "members_from": members_from}
    spec = {
        "schema": 1, "name": "nulls", "seeds": list(range(seeds)), "coalitions": ["none"], "defenses": ["none"], "floors": [],
        "attacks": [listed(a) for a in ATTACKS],
        "settings": [
            {"name": "clients", **common, "audit": clients, "attacks": passive},
            {"name": "coalition", **common, "audit": pair, "attacks": ON_MEAN, "coalitions": ["pair"]},
            {"name": "honest", **common, "audit": together, "attacks": active,
             "adversary": {"clients": 1, "knowledge": "rule", "mask_set": 20}},
        ],
    }  # fmt: skip
    YAML().dump(spec, folder / "nulls.yaml")
    said = invoke(folder / "nulls.yaml", "--results", folder / "results", "--workers", 2)
    return Ran(folder / "results", said)


@pytest.fixture(scope="module")
def null(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("null"), "holdout", 2)


@pytest.fixture(scope="module")
def leak(tmp_path_factory):
    """The same federations, asked about what they trained on."""
    return ran(tmp_path_factory.mktemp("leak"), "training", 1)


def test_every_registered_attack_has_a_null_test(null):
    assert unscored(null, ATTACKS) == {}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_finds_nothing_where_there_is_nothing(attack, null):
    check(null.units(attack), least=2)


def check(units: list[Unit], least: int) -> None:
    """AUC on both sides of one half, and members above the threshold: no more than luck would have."""
    assert len(units) >= least
    assert abs(deviations(units)) < LARGEST_Z
    assert chance(units, FPR, found(units, FPR)) > LEAST_CHANCE, (found(units, FPR), expected(units, FPR))


@pytest.mark.parametrize("attack", sorted({*ATTACKS} - WEAK))
def test_the_same_federation_leaks_to_it(attack, leak):
    """Without this the test above would hold of an attack that never finds anything."""
    assert deviations(leak.units(attack)) > LARGEST_Z


@pytest.mark.parametrize("attack", ["avg-cosine", "grad-cosine", "fedmia-i", "fedmia-ii"])
def test_a_leak_shows_at_the_low_false_positive_rate_too(attack, leak):
    units = leak.units(attack)
    assert chance(units, FPR, found(units, FPR)) < LEAST_CHANCE, (found(units, FPR), expected(units, FPR))


@pytest.mark.parametrize("setting", OF_SETTING)
def test_nobody_trained_on_the_members_of_the_null(setting, null, leak):
    wanted = OF_SETTING[setting]
    for where, trained_on in ((null, False), (leak, True)):
        cells = [r for a in ATTACKS for r in where.cells(a) if r["setting"] == setting]
        assert {t["target"] for r in cells for t in r["targets"]} == wanted
        for cell in cells:
            with np.load(cell["path"].with_suffix(".npz")) as arrays:
                for t in cell["targets"]:
                    ids, kind, owner = (arrays[f"t{t['target']}_{name}"] for name in ("ids", "kind", "owner"))
                    assert ((ids[kind == MEMBER] < 600) == trained_on).all()  # 600 training samples come first
                    assert ((owner[kind == MEMBER] >= 0) == trained_on).all()
                    assert (ids[kind == OFL] >= 600).all()
                    assert (kind == IFL).any() == (trained_on and setting != "honest")


def test_every_attack_finds_nothing_in_many_more_runs_either(tmp_path):
    """Eight seeds: the AUC to 0.02 and TF01 itself, of units pooled as a board pools them."""
    many = ran(tmp_path, "holdout", 8)
    for attack in ATTACKS:
        units = many.units(attack)
        check(units, least=8)
        everything = pooled(units)
        assert tf01(everything.scores, everything.member) is not None
        assert chance([everything], 0.001, found([everything], 0.001)) > LEAST_CHANCE, attack
