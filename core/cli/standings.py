"""Which rows leak least and most so far, from the AUC of each cell as it comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

from fedbench.core.experiment.job import Job

_NOBODY = "none"  # the coalition of rows in which no client defends: they stand beside every coalition's


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Of a setting and coalition: the rows with the lowest and the highest mean AUC over the ``attacks`` that all of its ``rows``
    have."""

    setting: str
    coalition: str
    best: tuple[str, float]
    worst: tuple[str, float]
    attacks: int
    rows: int


@dataclass
class Standings:
    """``floors``: names of defenses that are no defenses, and in no comparison. A row counts once one of its runs is complete, so
    that none is compared by the first of its attacks alone."""

    floors: Collection[str] = ()
    _found: dict[tuple[str, str], dict[str, dict[str, tuple[float, int]]]] = field(
        init=False, default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: (0.0, 0))))
    )
    """setting and coalition -> row -> attack -> sum over seeds, and of how many"""

    def add(self, job: Job, aucs: dict[str, float]) -> None:
        """What a run's attacks found, by their labels."""
        if aucs and job.defense.name not in self.floors:
            row = self._found[job.setting.name, job.coalition][job.defense.label]
            for attack, auc in aucs.items():
                total, n = row[attack]
                row[attack] = total + auc, n + 1

    def all(self) -> list[Standing]:
        """One of every setting and coalition with two rows or more, in the order in which they came."""
        named = [at for at in self._found if at[1] != _NOBODY] or list(self._found)
        alone = [at for at in self._found if at[1] == _NOBODY and not any(at[0] == other[0] for other in named)]
        return [standing for at in [*named, *alone] if (standing := self._of(*at)) is not None]

    def _of(self, setting: str, coalition: str) -> Standing | None:
        rows = {**self._found.get((setting, _NOBODY), {}), **self._found[setting, coalition]}
        most = max(map(len, rows.values()))
        rows = {label: row for label, row in rows.items() if 2 * len(row) >= most}  # of the others too little is known yet
        common = set.intersection(*(set(row) for row in rows.values()))
        if len(rows) < 2 or not common:
            return None
        means = {label: fmean(total / n for total, n in map(row.__getitem__, common)) for label, row in rows.items()}
        (low, best), *_, (high, worst) = sorted((mean, label) for label, mean in means.items())
        return Standing(
            setting=setting, coalition=coalition, best=(best, low), worst=(worst, high), attacks=len(common), rows=len(rows)
        )
