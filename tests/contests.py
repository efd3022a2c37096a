"""Contests without records: made of AUCs or of scores, and the definitions of their numbers as a
slow reference.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from types import SimpleNamespace

import numpy as np
from scipy import stats

from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.statistics.rows import FLOORS, AttackEntry, DefenseRow
from fedbench.leaderboard.statistics.scores import EntryScores, Part, SectionScores
from fedbench.leaderboard.statistics.tf01 import Sample
from fedbench.leaderboard.statistics.verdict import LeakStatistics


class _Independent(Part):
    """A part of AUCs with independent errors, in place of placements."""

    def pulls(self, positions):
        return self.below[positions]


class Contest(LeakStatistics):
    """A comparison with its results under short names."""

    @property
    def rows(self):
        return self.scores.rows

    def signed(self, label, attack):
        return self.leaks.of(label, attack).auc

    def settled(self, label, attack):
        return self.leaks.of(label, attack).settled

    def settle(self):
        """Take every sign for granted."""
        for row in self.rows:
            for attack in self.attacks:
                self.leaks.of(row.label, attack).__dict__["settled"] = True

    def worst(self, label):
        return self.worst_cases.of(label).worst

    def mean(self, label):
        return self.worst_cases.of(label).mean

    @property
    def eligible(self):
        return self.worst_cases.eligible

    @eligible.setter
    def eligible(self, attacks):
        self.worst_cases.__dict__["eligible"] = tuple(attacks)

    @property
    def ranks(self):
        return self.pairwise.ranks

    @property
    def against(self):
        return self.pairwise.against


def world(aucs, error=1e-6, labels=None, names=None):
    """A contest of complete rows with one target a seed. ``aucs`` [rows, attacks, seeds],
    independent errors.
    """
    rows, attacks, seeds = np.shape(aucs)
    labels, names = (
        labels or [f"row{i}" for i in range(rows)],
        list(names or [f"attack{a}" for a in range(attacks)]),
    )
    at = {
        (label, name): i * attacks + a
        for i, label in enumerate(labels)
        for a, name in enumerate(names)
    }
    nothing = Sample(0, np.zeros(1), np.zeros(1), np.zeros(1, int))
    stubs = [
        SimpleNamespace(
            label=label,
            name=label,
            accuracy=None,
            records=(),
            adaptive=(),
            complete=True,
            entries={a: SimpleNamespace(complete=True) for a in names},
            floor=label in FLOORS,
            undefended=label == "none",
            refuted=False,
        )
        for label in labels
    ]
    contest = Contest(SectionScores(stubs, [(seed, 0) for seed in range(seeds)]), names)
    parts = [
        _Independent(
            fold=seed,
            unit=(seed, 0),
            position=at,
            factors=np.ones(len(at)),
            aucs=flat,
            below=error * np.eye(len(at)),
            entries={
                key: EntryScores(flat[i], error, nothing, np.zeros(2)) for key, i in at.items()
            },
            ids=np.arange(0),
        )
        for seed, flat in enumerate(np.moveaxis(aucs, 2, 0).reshape(seeds, -1))
    ]
    contest.scores._parts = {"all": parts}
    return contest


def judged(scores, kind, canary=None, ids=lambda seed, target, n: np.arange(n)):
    """A contest of scores: label -> attack -> seed -> target -> [n] (None: the cell failed).
    ``kind`` [n], label -> [n], or a function of the seed; ``canary`` [n] bool: by default none;
    ``ids``: seed, target, n -> [n], by default the same for all targets.
    """
    targets = defaultdict(set)
    for seed, of in (
        (seed, of)
        for attacks in scores.values()
        for seeds in attacks.values()
        for seed, of in seeds.items()
    ):
        targets[seed].update(of)
    targets = {seed: tuple(sorted(of)) for seed, of in sorted(targets.items())}
    rows = []
    for label, attacks in scores.items():
        own = kind[label] if isinstance(kind, dict) else kind
        of_seed = own if callable(own) else lambda seed, own=own: own
        entries = {
            attack: AttackEntry(
                attack,
                {seed: _loaded(seed, of, of_seed(seed), canary, ids) for seed, of in seeds.items()},
                targets,
            )
            for attack, seeds in attacks.items()
        }
        rows.append(DefenseRow(label, label, entries, tuple(targets)))
    names = sorted({a for attacks in scores.values() for a in attacks})
    units = [(seed, t) for seed, of in targets.items() for t in of]
    return Contest(SectionScores(rows, units), names)


def _loaded(seed, of, kind, canary, ids):
    known = {t: np.asarray(s, float) for t, s in of.items() if s is not None}
    n, kind = len(kind), np.asarray(kind, np.int8)
    odd = np.zeros(n, bool) if canary is None else np.asarray(canary)

    def candidates_of(targets):
        return {
            t: Candidates(known[t], kind, ids(seed, t, n), np.ones(n, bool), odd) for t in targets
        }

    record = SimpleNamespace(
        outcome="ok" if known else "failed",
        by_adversary=False,
        targets=[SimpleNamespace(target=t, groups={"mix": None}) for t in known],
    )
    return SimpleNamespace(record=record, path="record", candidates_of=candidates_of)


class Reference:
    """The numbers of a contest by their definitions (docs/method.md). ``scores`` [rows, attacks,
    seeds, targets, n]; the first row is undefended; ``member`` [n] bool; ``shared``: whether the
    targets of a seed have the same non-members.

    Weights of a statistic are [rows, attacks, seeds]; its value on a unit is the sum of weight x
    (AUC - 1/2).
    """

    def __init__(self, scores, member, shared):
        members, others = scores[..., member][..., :, None], scores[..., ~member][..., None, :]
        won = (members > others) + 0.5 * (members == others)
        self.auc, (m, n) = won.mean(axis=(-2, -1)), won.shape[-2:]
        parts = [
            (won.mean(axis=axis) - self.auc[..., None]) / np.sqrt(k * (k - 1))
            for axis, k in ((-1, m), (-2, n))
        ]
        if shared:
            parts[1] = parts[1].sum(axis=3)
        # what each sample adds to the error of a seed's sum over targets
        self.influence = np.concatenate(
            [part.reshape(*self.auc.shape[:3], -1) for part in parts], axis=-1
        )

    def statistic(self, weights):
        """(values [seeds, targets], standard error of their mean)."""
        values = np.einsum("ras,rast->st", weights, self.auc - 0.5)
        return values, np.linalg.norm(
            np.einsum("ras,rasx->sx", weights, self.influence)
        ) / values.size

    def side(self, row, attacks):
        """(weights of what is picked on the other seeds, those of the plain maximum, the plain
        maximum).
        """
        lean = (self.auc[row] - 0.5).mean(axis=-1)
        picked, plain = np.zeros(self.auc.shape[:3]), np.zeros(self.auc.shape[:3])
        for seed in range(lean.shape[1]):
            others = np.delete(lean, seed, axis=1).mean(axis=1)
            best = max(attacks, key=lambda a: abs(others[a]))
            picked[row, best, seed] = -1 if others[best] < 0 else 1
        every = lean.mean(axis=1)
        best = max(attacks, key=lambda a: abs(every[a]))
        plain[row, best] = np.sign(every[best])
        return picked, plain, 0.5 + abs(every[best])

    def interval(self, weights, centre=0.5, largest=-1.0):
        """(mean, half-width) of the widest interval: from candidates, seeds, units where there are
        five, to the maximum.
        """
        values, error = self.statistic(weights)
        samples = [values.mean(axis=1), *([values.ravel()] if values.size >= 5 else [])]
        of_t = [stats.t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v)) for v in samples]
        mean = centre + values.mean()
        return mean, max([stats.norm.ppf(0.975) * error, *of_t, largest - mean])

    def mean(self, cells):
        return self.interval(
            np.mean([c[0] for c in cells], axis=0), largest=np.mean([c[2] for c in cells])
        )

    def raised(self, one, cells):
        """What is picked, or the mean over the attacks where that is higher, with ends that hold
        both intervals.
        """
        (picked, half), (mean, width) = self.interval(one[0], largest=one[2]), self.mean(cells)
        both = max(picked + half, mean + width) - min(picked - half, mean - width)
        return (mean, both / 2) if mean > picked else (picked, half)

    def p_value(self, weights):
        values, error = self.statistic(weights)
        mean, means = abs(values.mean()), values.mean(axis=1)
        of_t = 2 * stats.t.sf(mean / (means.std(ddof=1) / np.sqrt(len(means))), len(means) - 1)
        return max(of_t, 2 * stats.norm.sf(mean / error))

    def tested(self, one, other):
        """(difference of what is picked, p-value): the higher row is told from the lower one's
        plain maximum, too.
        """
        mean = self.statistic(one[0] - other[0])[0].mean()
        low, high = (one, other) if mean < 0 else (other, one)
        guard = high[0] - low[1]
        if self.statistic(guard)[0].mean() <= 0:
            return mean, 1.0
        return mean, max(self.p_value(one[0] - other[0]), self.p_value(guard))

    def eligible(self):
        found = [self.statistic(self.side(0, [a])[0]) for a in range(self.auc.shape[1])]
        p_values = adjusted(
            [2 * stats.norm.sf(abs(values.mean()) / error) for values, error in found]
        )
        return [
            a for a, (values, _) in enumerate(found) if values.mean() > 0 and p_values[a] <= 0.05
        ]

    def numbers(self):
        """Quantity -> numbers [rows, ...] or, of tests, [pairs, 2]."""
        rows, (eligible, attacks) = (
            range(len(self.auc)),
            (self.eligible(), range(self.auc.shape[1])),
        )
        worst, cells = (
            [self.side(r, eligible) for r in rows],
            [[self.side(r, [a]) for a in attacks] for r in rows],
        )
        of_mean = [[cells[r][a] for a in eligible] for r in rows]
        tests = [self.tested(worst[r], worst[0]) for r in rows[1:]]
        against = [self.interval(worst[r][0] - worst[0][0], 0.0) for r in rows[1:]]
        return {
            "signed": [[self.interval(one[0], largest=one[2]) for one in of] for of in cells],
            "worst": [
                (*self.raised(one, of), one[2]) for one, of in zip(worst, of_mean, strict=True)
            ],
            "mean": [self.mean(of) for of in of_mean],
            "against": [
                (*found, p)
                for found, p in zip(against, adjusted([p for _, p in tests]), strict=True)
            ],
            "tests": [self.tested(worst[a], worst[b]) for a, b in combinations(rows, 2)],
        }


def adjusted(p_values):
    """Holm's p-values by their definition."""
    least = [min(1.0, p * sum(q >= p for q in p_values)) for p in p_values]
    return [max(x for x, q in zip(least, p_values, strict=True) if q <= p) for p in p_values]
