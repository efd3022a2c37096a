"""How members and non-members are distributed in what a local model says of them (MemberShield, Figures 1 to 6)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params
from fedbench.core.report import Block, Figure, Numbers, Section, Style
from fedbench.plugins.analyses.common import advantage, clients_of, framed, members_of, outsiders_of, seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GRADIENT = "upload-grad-sq"
EDGES = {  # fixed, so that panels can be compared; the outer bins hold what lies beyond
    "confidence": np.linspace(0, 1, 41),
    "modified entropy": np.logspace(-6, 2, 41),
    "gradient norm": np.logspace(-6, 4, 41),
}
SIDES = {"members": members_of, "non-members": outsiders_of}
_REPEATS = 200


class Distributions(Analysis):
    """Histograms of confidence, modified entropy and gradient norm of members and of outside non-members under local models."""

    needs = frozenset({"confidence", "modified-entropy", GRADIENT})
    by_default = False

    class Params(Params):
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
        for name in EDGES:
            sides = {side: _bins(run, name, values[name], models, side) for side in SIDES}
            if not all((bins >= 0).any() for bins in sides.values()):
                return None
            numbers |= _distances(name, list(sides.values()), run.rng(f"distributions/{name}"))
            arrays |= {f"{name} {side}": _counts(bins) for side, bins in sides.items()}
        if self.params.which == "worst":
            ((r, k),) = models
            numbers |= {"client": Number(k), "round": Number(int(run.rounds[r]))}
        return Findings(numbers, arrays, dict.fromkeys(arrays, "samples"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The distances of every defense, and members over non-members, a row of panels a defense."""
        yield Numbers(label)
        if any(seeds_of(section, row, label) for row in section.rows):
            oracle = self.params.which == "worst"
            kind = "distributions-worst" if oracle else "distributions"  # a suite may have both
            yield Figure(kind, "Members and non-members", partial(_draw, section, label, oracle))


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


def _bins(run: FinishedRun, name: str, values: np.ndarray, models: list[tuple[int, int]], side: str) -> np.ndarray:
    """[m, N] the bin that each of m models (round, client) puts a sample in, -1 where it is not of the side."""
    rows = []
    for r, k in models:
        a = values[r, run.rows.index(k)]
        bins = np.clip(np.searchsorted(EDGES[name], a, side="right") - 1, 0, len(EDGES[name]) - 2)
        rows.append(np.where(SIDES[side](run, k) & np.isfinite(a), bins, -1))
    return np.stack(rows)


def _counts(bins: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """[40] how many fall in each bin; a sample counts as often as its weight says, under all models alike."""
    here = bins >= 0
    return np.bincount(bins[here], None if weights is None else np.broadcast_to(weights, bins.shape)[here], minlength=40)


def _distances(name: str, sides: list[np.ndarray], rng: np.random.Generator) -> dict[str, Number]:
    whole = [_counts(bins) for bins in sides]
    drawn = [total_variation(*(_counts(bins, rng.poisson(1.0, bins.shape[1:])) for bins in sides)) for _ in range(_REPEATS)]
    shares = sum(whole) / sum(w.sum() for w in whole)
    samples = [int((bins >= 0).any(axis=0).sum()) for bins in sides]
    null = [total_variation(*(rng.multinomial(n, shares) for n in samples)) for _ in range(_REPEATS)]
    return {
        f"{name} distance": Number(total_variation(*whole), float(np.nanstd(drawn)), "total variation"),
        f"{name} null": Number(float(np.mean(null)), unit="total variation"),
    }


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    """Half the sum of absolute differences of two histograms' shares: 0 alike, 1 apart; NaN where one is empty."""
    if not one.sum() or not other.sum():
        return float("nan")
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


def _draw(section: Section, label: str, oracle: bool, style: Style) -> Canvas:
    """Shares of each bin, all seeds together; one column a number, one row a defense that has findings."""
    found = {row.label: [f.arrays for f in seeds_of(section, row, label, "confidence members")] for row in section.rows}
    found = {name: arrays for name, arrays in found.items() if arrays}
    figure = style.new_figure(3.3 * len(EDGES), 1.5 * len(found) + 0.9)
    axes = figure.subplots(len(found), len(EDGES), squeeze=False, sharex="col")
    for (row, arrays), line in zip(found.items(), axes, strict=True):
        for (name, bins), axis in zip(EDGES.items(), line, strict=True):
            for i, side in enumerate(SIDES):
                _outline(axis, style, np.sum([a[f"{name} {side}"] for a in arrays], axis=0), bins, i, side)
            if bins[0] > 0:
                axis.set_xscale("log")
            axis.set_yticks([])
        line[0].set_ylabel(style.literal(row, 24), fontsize=8)
    for name, axis in zip(EDGES, axes[-1], strict=True):
        axis.set_xlabel(name)
    models = "the model that tells members best (oracle)" if oracle else "all clients' models, last audited round"
    return framed(figure, axes[0][0], style, section, f"Members and non-members under {models}")


def _outline(axis: Axes, style: Style, counts: np.ndarray, bins: np.ndarray, i: int, side: str) -> None:
    if counts.sum():
        axis.stairs(counts / counts.sum(), bins, color=style.colour(i), fill=True, alpha=0.35, label=side)
        axis.stairs(counts / counts.sum(), bins, color=style.colour(i), lw=1.1, ls=style.dashes(i))
