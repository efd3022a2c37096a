"""Sections without a file: rows and attacks of which nothing is known but scores, or AUCs alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.entry import Entry
from fedbench.leaderboard.statistics.row import FLOORS, Row
from fedbench.leaderboard.statistics.sample import Sample
from fedbench.leaderboard.statistics.sheet import Own, Part

CANDIDATES = 50  # of each class; those of a world are never looked at


@dataclass
class Stub:
    """A complete row of a world."""

    label: str
    entries: dict = field(default_factory=dict)
    complete: bool = True

    @property
    def floor(self):
        return self.label in FLOORS

    @property
    def undefended(self):
        return self.label == "none"


def world(aucs, error=1e-6, labels=None, names=None):
    """A contest of complete rows with one target a seed. ``aucs`` [rows, attacks, seeds], independent errors."""
    rows, attacks, seeds = np.shape(aucs)
    labels, names = labels or [f"row{i}" for i in range(rows)], list(names or [f"attack{a}" for a in range(attacks)])
    at = {(label, name): i * attacks + a for i, label in enumerate(labels) for a, name in enumerate(names)}
    nothing = Sample(0, np.zeros(1), np.zeros(1), np.zeros(1, int))
    pulls = np.zeros((len(at), CANDIDATES))
    stubs = [Stub(label, {a: SimpleNamespace(complete=True) for a in names}) for label in labels]
    contest = Contest(stubs, names, [(seed, 0) for seed in range(seeds)])
    contest.parts = [
        Part(
            fold=seed, unit=(seed, 0), at=at, aucs=flat, covariance=error**2 * np.eye(len(at)), pulls=pulls,
            own={key: Own(flat[i], error, nothing, pulls[i]) for key, i in at.items()}, ids=np.arange(CANDIDATES),
        )
        for seed, flat in enumerate(np.moveaxis(aucs, 2, 0).reshape(seeds, -1))
    ]  # fmt: skip
    return contest


def judged(scores, kind, ids=None, canary=None):
    """A contest of what was said of candidates. ``scores``: label -> attack -> seed -> target -> [n] (None: it failed);
    ``kind`` [n], or label -> [n], or seed -> target -> [n]; ``ids`` [n]: by default those of the seed and target; ``canary``
    [n] bool: by default none."""
    targets: dict[int, set[int]] = {}
    for attacks in scores.values():
        for seeds in attacks.values():
            for seed, of in seeds.items():
                targets.setdefault(seed, set()).update(of)
    targets = {seed: tuple(sorted(of)) for seed, of in sorted(targets.items())}
    rows = []
    for label, attacks in scores.items():
        entries = {}
        for attack, seeds in attacks.items():
            own = {seed: _loaded(of, _kinds(kind, label, seed), ids, canary) for seed, of in seeds.items()}
            entries[attack] = Entry(attack, own, targets)
        rows.append(Row(label, label, entries, tuple(targets)))
    names = sorted({a for attacks in scores.values() for a in attacks})
    return Contest(rows, names, [(seed, t) for seed, of in targets.items() for t in of])


def _kinds(kind, label, seed):
    if isinstance(kind, dict):
        kind = kind.get(label, kind.get(seed))
    return kind


def _loaded(of, kind, ids, canary):
    known = {t: s for t, s in of.items() if s is not None}

    def candidates_of(targets):
        found = {}
        for t in targets:
            k = kind[t] if isinstance(kind, dict) else kind
            mine = np.arange(len(k)) if ids is None else ids
            odd = np.zeros(len(k), bool) if canary is None else np.asarray(canary)
            found[t] = Candidates(np.asarray(known[t], float), np.asarray(k, np.int8), mine, np.ones(len(k), bool), odd)
        return found

    record = SimpleNamespace(
        outcome="ok" if known else "failed", by_adversary=False,
        targets=[SimpleNamespace(target=t, groups={"mix": None}) for t in known],
    )  # fmt: skip
    return SimpleNamespace(record=record, path="record", candidates_of=candidates_of)
