"""How members and non-members are distributed in what a local model says of them (MemberShield, Figures 1 to 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Block, Findings, FinishedRun, Judgement, Number, Numbers, Section
from fedbench.core import Params as Base
from fedbench.plugins.analyses.distribution_figure import distribution_figure
from fedbench.plugins.analyses.sides import advantage, clients_of, members_of, outsiders_of

GRADIENT = "upload-grad-sq"
EDGES = {  # fixed, so that panels can be compared; the outer bins hold what lies beyond
    "confidence": np.linspace(0, 1, 41),
    "modified entropy": np.logspace(-6, 2, 41),
    "gradient norm": np.logspace(-6, 4, 41),
}
SIDES = ("members", "non-members")
_REPEATS = 200
Whose = Callable[[FinishedRun, int], np.ndarray]


@dataclass(frozen=True)
class _Side:
    """``bins``: [m, N] the bin that each of m models puts a sample in, -1 where it does not count."""

    bins: np.ndarray

    def counts(self, size: int, weights: np.ndarray | None = None) -> np.ndarray:
        """[size] how many fall in each bin; a sample counts as often as its weight says, under all models alike."""
        here = self.bins >= 0
        times = None if weights is None else np.broadcast_to(weights, self.bins.shape)[here]
        return np.bincount(self.bins[here], times, minlength=size)

    @property
    def samples(self) -> int:
        """How many different ones count."""
        return int((self.bins >= 0).any(axis=0).sum())


class Distributions(Analysis):
    """Histograms of confidence, modified entropy and gradient norm of members and of outside non-members under local models."""

    needs = frozenset({"confidence", "modified-entropy", GRADIENT})
    by_default = False

    class Params(Base):
        which: Literal["pooled", "worst"] = Field(
            "pooled",
            description="pooled: every client's model in the last audited round; worst: the one model of all audited rounds "
            "that tells members best by one of the three numbers, as the paper's: chosen on the answers, so an oracle",
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``<number> members`` and ``<number> non-members`` [40], counts; ``<number> distance``, the total variation of the two,
        with its bootstrap error over samples, and ``<number> null``, its mean where both are drawn from one distribution.

        None where no client has both members and outsiders among the audited samples.
        """
        values = _values(run)
        models = [(len(run.rounds) - 1, k) for k in clients_of(run)]
        if self.params.which == "worst":
            every = [(r, k) for r in range(len(run.rounds)) for k in clients_of(run)]
            models = [max(every, key=lambda model: _told(run, values, *model))] if every else []
        if not models:
            return None
        numbers: dict[str, Number] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, edges in EDGES.items():
            sides = [_side(run, values[name], models, whose, edges) for whose in (members_of, outsiders_of)]
            if not all(s.samples for s in sides):
                return None
            numbers |= _distances(name, sides, len(edges) - 1, run.rng(f"distributions/{name}"))
            arrays |= {f"{name} {who}": s.counts(len(edges) - 1) for who, s in zip(SIDES, sides, strict=True)}
        if self.params.which == "worst":
            ((r, k),) = models
            numbers |= {"client": Number(k), "round": Number(int(run.rounds[r]))}
        return Findings(numbers, arrays, dict.fromkeys(arrays, "samples"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The distances of every defense, and members over non-members, a row of panels a defense."""
        yield Numbers(label)
        if any(f for row in section.rows for seed in section.seeds if (f := row.findings(label, seed)) is not None):
            yield distribution_figure(section, label, EDGES, SIDES, oracle=self.params.which == "worst")


def _values(run: FinishedRun) -> dict[str, np.ndarray]:
    """Name -> [R, K, N]; what does not vary over the clients is the same for each."""
    shape = (len(run.rounds), len(run.rows), len(run.pool))
    found = {
        "confidence": run.signals["confidence"], "modified entropy": run.signals["modified-entropy"],
        "gradient norm": np.sqrt(run.signals[GRADIENT]),
    }  # fmt: skip
    return {name: np.broadcast_to(a, shape) for name, a in found.items()}


def _told(run: FinishedRun, values: dict[str, np.ndarray], r: int, k: int) -> float:
    """How far the best threshold on one of the numbers tells the client's members."""
    row = run.rows.index(k)
    seen = [a[r, row] for a in values.values()]
    return max(advantage(a[members_of(run, k) & np.isfinite(a)], a[outsiders_of(run, k) & np.isfinite(a)]) for a in seen)


def _side(run: FinishedRun, values: np.ndarray, models: list[tuple[int, int]], whose: Whose, edges: np.ndarray) -> _Side:
    rows = []
    for r, k in models:
        a = values[r, run.rows.index(k)]
        counted = whose(run, k) & np.isfinite(a)
        bins = np.clip(np.searchsorted(edges, a, side="right") - 1, 0, len(edges) - 2)
        rows.append(np.where(counted, bins, -1))
    return _Side(np.stack(rows))


def _distances(name: str, sides: list[_Side], size: int, rng: np.random.Generator) -> dict[str, Number]:
    whole = [s.counts(size) for s in sides]
    drawn = [total_variation(*(s.counts(size, rng.poisson(1.0, (s.bins.shape[1],))) for s in sides)) for _ in range(_REPEATS)]
    shares = sum(whole) / sum(w.sum() for w in whole)
    null = [total_variation(*(rng.multinomial(s.samples, shares) for s in sides)) for _ in range(_REPEATS)]
    return {
        f"{name} distance": Number(total_variation(*whole), float(np.nanstd(drawn)), "total variation"),
        f"{name} null": Number(float(np.mean(null)), unit="total variation"),
    }


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    """Half the sum of absolute differences of two histograms' shares: 0 alike, 1 apart; NaN where one is empty."""
    if not one.sum() or not other.sum():
        return float("nan")
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)
