"""The cells of a board and the runs that they are of, as columns: what one looks at when a row is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbench.core import MEMBER, OFL
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics import Group, Score
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.site.again import only_of
from fedbench.leaderboard.site.encode import Table, number, packed, packed_numbers, text
from fedbench.leaderboard.statistics.rows import adversary_of, ended
from fedbench.leaderboard.tables.provenance import origin

BINS = 20
BEYOND = 0.005  # share of the scores at either end that the outer bins take in
_KEY = 12  # hex digits of a key or a digest
_MOST_FACTS, _MOST_PARAMS, _MOST_VALUES = 40, 60, 4
_RUN = ("key", "setting", "coalition", "members", "defense", "adversary", "seed", "only", "machine", "started", "times",
        "accuracy", "rounds", "history", "facts")  # fmt: skip
_CELL = ("key", "run", "attack", "outcome", "reason", "sample", "targets", "auc", "error", "tf01", "range", "scores", "cpu_s")


def _columns(names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [] for name in names}


@dataclass(kw_only=True)
class Cells:
    """Everything that is collected while sections are written; a record that several sections show is one cell."""

    settings: Mapping[tuple[str, str], int]
    uses: Table = field(default_factory=Table)
    machines: Table = field(default_factory=Table)
    onlys: Table = field(default_factory=Table)
    reasons: Table = field(default_factory=lambda: Table([""]))
    outcomes: Table = field(default_factory=lambda: Table(["ok"]))
    rounds: Table = field(default_factory=Table)
    targets: Table = field(default_factory=Table)
    samples: Table = field(default_factory=Table)
    facts: Table = field(default_factory=Table)
    runs: dict[str, list[Any]] = field(default_factory=lambda: _columns(_RUN))
    cells: dict[str, list[Any]] = field(default_factory=lambda: _columns(_CELL))
    _run_at: dict[str, int] = field(default_factory=dict)
    _cell_at: dict[int, int] = field(default_factory=dict)

    def use(self, use: ComponentUse) -> int:
        """Position of a component with its parameters."""
        return self.uses.index(_use(use), use.model_dump_json())

    def cell(self, loaded: LoadedRecord) -> int:
        """Position of a record's cell; it is added when it is asked for first."""
        if id(loaded) not in self._cell_at:
            self._cell_at[id(loaded)] = len(self.cells["key"])
            self._add(self.cells, self._cell(loaded))
        return self._cell_at[id(loaded)]

    @staticmethod
    def _add(columns: dict[str, list[Any]], row: Mapping[str, Any]) -> None:
        for name, column in columns.items():
            column.append(row[name])

    def _cell(self, loaded: LoadedRecord) -> dict[str, Any]:
        r = loaded.record
        group: Group = "ofl" if all("ofl" in t.groups for t in r.targets) else "mix"
        scores = [t.groups.get(group) for t in r.targets]
        known = [s for s in scores if s is not None]
        judged = list(loaded.candidates_of([t.target for t in r.targets]).values()) if r.outcome == "ok" else []
        low_high, counts = histogram(judged, group)
        return {
            "key": text(r.key[:_KEY]), "run": self._run(loaded), "attack": self.use(r.attack),
            "outcome": self.outcomes.index(ended(loaded)), "reason": self.reasons.index(text(r.reason, 400)),
            "sample": self.samples.index([group, sum(s.n_members for s in known), sum(s.n_nonmembers for s in known)]),
            "targets": self.targets.index([t.target for t in r.targets]) if r.targets else -1,
            "auc": packed_numbers([s.value("auc") if s else None for s in scores], 100_000, width=3),
            "error": packed_numbers([s.error("auc") if s else None for s in scores], 10_000, width=2), "tf01": _known(scores),
            "range": low_high, "scores": counts, "cpu_s": number(r.measured.attack_cpu_s, 2),
        }  # fmt: skip

    def _run(self, loaded: LoadedRecord) -> int:
        """The first cell of a run with a model describes it: the others say the same."""
        r = loaded.record
        if r.run_key not in self._run_at:
            self._run_at[r.run_key] = len(self.runs["key"])
            self._add(self.runs, self._described(loaded))
        elif self.runs["accuracy"][at := self._run_at[r.run_key]] is None and r.utility is not None:
            for name, value in self._described(loaded).items():
                self.runs[name][at] = value
        return self._run_at[r.run_key]

    def _described(self, loaded: LoadedRecord) -> dict[str, Any]:
        r = loaded.record
        m, where = r.measured, {"setting": r.setting, "coalition": r.coalition, "defense": r.defense.label}
        losses = [number(row.train_loss) for row in r.history]
        return {
            "key": text(r.run_key[:_KEY]), "setting": self.settings[r.suite, r.setting], "coalition": text(r.coalition),
            "members": r.members, "defense": self.use(r.defense), "adversary": text(adversary_of(loaded) or ""),
            "seed": r.seed, "only": self.onlys.index(only_of(where)),
            "machine": self.machines.index([[name, text(value)] for name, value in origin(loaded)]),
            "started": text(m.started, 40),
            "times": [number(x, 2) for x in (m.train_cpu_s, m.train_wall_s, m.wall_s, m.signals_cpu_s, m.peak_memory_mb)],
            "accuracy": None if r.utility is None else number(r.utility.accuracy),
            "rounds": self.rounds.index([row.round for row in r.history]) if r.history else -1,
            "history": [[number(row.accuracy) for row in r.history], losses],
            "facts": [self.facts.index(fact) for fact in _facts(r.facts)],
        }  # fmt: skip


def _known(scores: Sequence[Score | None]) -> list[float | int | None]:
    """TF01 of every target in percent; nothing where no target has the non-members for it."""
    found = [number(s.value("tf01"), 2) if s else None for s in scores]
    return [] if all(value is None for value in found) else found


def histogram(judged: Iterable[Candidates], group: Group) -> tuple[list[float | int | None] | None, str]:
    """([low, high], packed counts of members, then of non-members) of all targets together, those of ``group``; (None, "") of
    nothing. Inner bins are of one width; the outer ones take in what lies beyond."""
    members, others = [], []
    for c in judged:
        member = c.kind == MEMBER
        other = (c.kind == OFL) if group == "ofl" else (c.kind >= 0) & ~member & c.in_mix
        members.append(c.scores[member if group == "ofl" else member & c.in_mix])
        others.append(c.scores[other])
    every = np.concatenate([*members, *others]) if members else np.empty(0)
    if not every.size:
        return None, ""
    low, high = np.quantile(every, [BEYOND, 1 - BEYOND])
    counts = [_counts(np.concatenate(part), low, high) for part in (members, others)]
    return [number(float(f"{low:.4g}")), number(float(f"{high:.4g}"))], packed(np.concatenate(counts))


def _counts(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    width = high - low
    at = np.zeros(len(scores)) if width <= 0 else np.floor(BINS * ((scores - low) / width))
    found: np.ndarray = np.bincount(np.clip(at, 0, BINS - 1).astype(np.int64), minlength=BINS)
    return found


def _use(use: ComponentUse) -> dict[str, Any]:
    """A component as a reader knows it; of several defenses in one, the parameters are led by whose they are."""
    several = len(use.chain) > 1
    params = [
        [text(f"{part.name}: {name}" if several else name, 80), text(value, 120)]
        for part in use.chain for name, value in part.params.items()
    ]  # fmt: skip
    return {
        "label": text(use.label), "name": text(use.full_name), "package": text(", ".join(packages(use))),
        "digest": text(use.digest[:_KEY]),
        "params": params[:_MOST_PARAMS], "only": only_of({"attack": use.label}),
    }  # fmt: skip


def packages(use: ComponentUse) -> list[str]:
    """Every package, with its version, that brings a part of it."""
    return list(dict.fromkeys(text(part.distribution) for part in use.chain))


def _facts(facts: Mapping[str, FactValue]) -> list[list[str]]:
    return [[text(name, 80), _fact(value)] for name, value in facts.items() if name != REMARKS][:_MOST_FACTS]


def _fact(value: FactValue) -> str:
    if isinstance(value, list):
        few = ", ".join(map(_fact, value[:_MOST_VALUES]))
        return text(few if len(value) <= _MOST_VALUES else f"{few}, … ({len(value)} values)")
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def outcomes(cells: Cells, found: Counter[str]) -> list[list[int]]:
    """[index of the outcome, how many], in the order of the names."""
    return [[cells.outcomes.index(what), n] for what, n in sorted(found.items()) if n]
