"""Distributions of members, of other clients' samples and of samples from outside: histograms and
cumulative curves of what local models say of them, and of attacks' scores.

MemberShield (Ahmed et al., Neural Networks 2025), Figures 1 to 6; FedMIA (Zhu et al., CVPR 2025),
Figure 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy import ndarray
from pydantic import Field, model_validator

from fedbench.core import Analysis, Findings, FinishedRun, Judged, Judgement, Number, Params
from fedbench.core.report import (
    Block,
    Content,
    Figure,
    Note,
    Numbers,
    Row,
    Section,
    Style,
    Table,
    Value,
    Words,
)
from fedbench.plugins.analyses.common import (
    advantage,
    clients_of,
    framed,
    insiders_of,
    left_out,
    members_of,
    numbers,
    outsiders_of,
    seeds_of,
    shown,
    stroke,
    table,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Quantity = Literal["confidence", "modified entropy", "gradient norm"]
GRADIENT = "upload-grad-sq"
SIGNALS = {
    "confidence": "confidence",
    "modified entropy": "modified-entropy",
    "gradient norm": GRADIENT,
    "loss": "loss",
}
_BINS = 40
EDGES = {  # fixed, so that panels can be compared; the outer bins hold what lies beyond
    "confidence": np.linspace(0, 1, _BINS + 1),
    "loss": np.logspace(-6, 2, _BINS + 1),
    "modified entropy": np.logspace(-6, 2, _BINS + 1),
    "gradient norm": np.logspace(-6, 4, _BINS + 1),
    "score": np.linspace(-5, 5, _BINS + 1),
}
SIDES = {"members": members_of, "outside": outsiders_of, "inside": insiders_of}
LEGEND = {
    "members": "members",
    "outside": "non-members from outside",
    "inside": "non-members of other clients",
}
QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}
_REPEATS = 200
_INSTEAD = (
    "The data's task has no classes, so neither confidence nor entropy: the loss is shown instead."
)

Counts = Mapping[str, ndarray]  # side -> [40]


class Distributions(Analysis):
    """Histograms of members and both kinds of non-members by confidence, modified entropy and
    gradient norm under local models, and by attacks' scores.

    A score counts in standard deviations from the mean of the target's non-members from outside.
    A task without classes has the loss in place of confidence, and no entropy.
    """

    may_lack = frozenset({"confidence", "modified-entropy"})
    by_default = False

    class Params(Params):
        which: Literal["pooled", "worst"] = Field(
            "pooled",
            description="pooled: every client's model in the last audited round; worst: the one "
            "model of all audited rounds that separates members best by one of the numbers, as "
            "the paper's: chosen with the labels, so an oracle",
        )
        numbers: tuple[Quantity, ...] = Field(
            get_args(Quantity), description="numbers that are measured; none costs nothing"
        )
        attacks: tuple[str, ...] = Field(
            (),
            description="labels of the attacks with scores that are shown; there are findings of "
            "these alone. By default no scores, and findings of every attack",
        )
        defenses: tuple[str, ...] = Field(
            (), description="labels of the defenses that a figure shows; by default all"
        )

        @model_validator(mode="after")
        def _has_columns(self) -> Distributions.Params:
            if not self.numbers and not self.attacks:
                raise ValueError("numbers and attacks are empty: name one to show")
            return self

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        names = {SIGNALS[name] for name in self.params.numbers}
        return frozenset(names | {"loss"} if "confidence" in names else names)

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Count ``<number> members``, ``<number> outside`` and ``<number> inside`` [40], and the
        same of ``score``.

        ``<number> distance`` is the total variation of members and outside, with its bootstrap
        error over samples, and ``<number> null`` its mean where both are drawn from one
        distribution. No numbers where no client has both members and outsiders among the audited
        samples.
        """
        scored = self.params.attacks
        if left_out(judgement, scored):
            return None
        numbers, arrays = self._measured(run)
        if scored and judgement is not None:
            for side, counts in score_counts(judgement.targets).items():
                arrays[f"score {side}"] = counts
        if not arrays:
            return None
        return Findings(numbers, arrays, dict.fromkeys(arrays, "samples"))

    def _measured(self, run: FinishedRun) -> tuple[dict[str, Number], dict[str, ndarray]]:
        """Return distances and counts under local models."""
        values = _values(run, self.params.numbers)
        clients = clients_of(run)
        numbers: dict[str, Number] = {}
        arrays: dict[str, ndarray] = {}
        if not clients or not values:
            return numbers, arrays
        models = [(len(run.rounds) - 1, k) for k in clients]
        worst = self.params.which == "worst"
        if worst:
            every_model = product(range(len(run.rounds)), clients)
            models = [max(every_model, key=lambda model: _best_advantage(run, values, *model))]
        for name in values:
            sides = {side: _bins(run, name, values[name], models, side) for side in SIDES}
            compared = [sides["members"], sides["outside"]]
            if not all((bins >= 0).any() for bins in compared):
                return {}, {}
            for side, bins in sides.items():
                arrays[f"{name} {side}"] = _counts(bins)
            numbers |= _distances(name, compared, run.rng(f"distributions/{name}"))
        if worst:
            ((r, k),) = models
            numbers |= {"client": Number(k), "round": Number(int(run.rounds[r]))}
        return numbers, arrays

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the distances and quantiles, then histograms and cumulative curves: a row of panels
        a defense.
        """
        yield Numbers(label)
        rows = {}
        for row in section.rows:
            panels = panels_of(section, row, label)
            if panels and shown(row.label, self.params.defenses):
                rows[row.label] = panels
        if not rows:
            return
        if any("loss" in panels for panels in rows.values()):
            yield Note(Words(_INSTEAD))
        yield _quantiles_table(rows)
        oracle = self.params.which == "worst"
        kind = "distributions-worst" if oracle else "distributions"  # a suite may have both
        for form, title in (("histograms", "Histograms"), ("cumulative", "Cumulative shares")):
            drawing = partial(_draw, section, rows, oracle, form == "cumulative")
            yield Figure(f"{kind}-{form}", f"{title} of members and non-members", drawing)


# ---------------------------------------------------------------- under local models


def _values(run: FinishedRun, names: tuple[str, ...]) -> dict[str, ndarray]:
    """Map a name to [R, K, N]; what does not vary over the clients is the same for each."""
    shape = (len(run.rounds), len(run.rows), len(run.pool))
    values = {}
    for name in names:
        if name == "confidence" and name not in run.signals:
            name = "loss"
        if SIGNALS[name] in run.signals:
            signal = run.signals[SIGNALS[name]]
            number = np.sqrt(signal) if name == "gradient norm" else signal
            values[name] = np.broadcast_to(number, shape)
    return values


def _best_advantage(run: FinishedRun, values: dict[str, ndarray], r: int, k: int) -> float:
    """Largest advantage of a threshold on one of the numbers, for the client's members."""
    row = run.rows.index(k)
    members = members_of(run, k)
    outsiders = outsiders_of(run, k)
    advantages = []
    for array in values.values():
        a = array[r, row]
        advantages.append(advantage(a[members & np.isfinite(a)], a[outsiders & np.isfinite(a)]))
    return max(advantages)


def _bins(
    run: FinishedRun, name: str, values: ndarray, models: list[tuple[int, int]], side: str
) -> ndarray:
    """Bin [m, N] that each of m models (round, client) puts a sample of the side in, else -1."""
    rows = []
    for r, k in models:
        a = values[r, run.rows.index(k)]
        rows.append(np.where(SIDES[side](run, k) & np.isfinite(a), _bin_of(name, a), -1))
    return np.stack(rows)


def _bin_of(name: str, values: ndarray) -> ndarray:
    """Bin of each value, the outer ones for what lies beyond."""
    return np.clip(np.searchsorted(EDGES[name], values, side="right") - 1, 0, _BINS - 1)


def _counts(bins: ndarray, weights: ndarray | None = None) -> ndarray:
    """Count the samples of each bin, [40]; ``weights`` [N]: how often each counts."""
    inside = bins >= 0
    if weights is not None:
        weights = np.broadcast_to(weights, bins.shape)[inside]
    return np.bincount(bins[inside], weights, minlength=_BINS)


def _distances(name: str, sides: list[ndarray], rng: np.random.Generator) -> dict[str, Number]:
    counts = [_counts(bins) for bins in sides]
    resampled = []
    for _ in range(_REPEATS):
        again = [_counts(bins, rng.poisson(1.0, bins.shape[1:])) for bins in sides]
        resampled.append(total_variation(*again))
    shares = sum(counts) / sum(c.sum() for c in counts)
    sizes = [int((bins >= 0).any(axis=0).sum()) for bins in sides]
    null = []
    for _ in range(_REPEATS):
        null.append(total_variation(*[rng.multinomial(n, shares) for n in sizes]))
    error = float(np.nanstd(resampled))
    return {
        f"{name} distance": Number(total_variation(*counts), error, "total variation"),
        f"{name} null": Number(float(np.mean(null)), unit="total variation"),
    }


def total_variation(p: ndarray, q: ndarray) -> float:
    """Half the sum of absolute differences of two histograms' shares; NaN where one is empty."""
    if not p.sum() or not q.sum():
        return float("nan")
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)


# ---------------------------------------------------------------- scores


def score_counts(targets: tuple[Judged, ...]) -> dict[str, ndarray]:
    """Count the candidates of each side by their standardised score, all targets together."""
    counts = {side: np.zeros(_BINS) for side in SIDES}
    for target in targets:
        inside_federation = target.owner >= 0
        others = target.counted & ~target.member
        masks = {
            "members": target.member,
            "outside": others & ~inside_federation,
            "inside": others & inside_federation,
        }
        reference = target.scores[masks["outside"]]
        if not len(reference):
            continue
        scale = float(reference.std()) or 1.0
        bins = _bin_of("score", (target.scores - reference.mean()) / scale)
        for side, mask in masks.items():
            counts[side] += _counts(bins[mask])
    return counts


# ---------------------------------------------------------------- tables and figures


def panels_of(section: Section, row: Row, label: str) -> dict[str, tuple[str, Counts]]:
    """Map a panel's title to (the number's name, counts over all seeds); numbers under local models
    are those of the first attack with findings.
    """
    panels: dict[str, tuple[str, Counts]] = {}
    for attack, name in product(row.entries, EDGES):
        by_seed = seeds_of(section, row.entries[attack], label, f"{name} members")
        if by_seed:
            title = f"score of {attack}" if name == "score" else name
            counts = {}
            for side in SIDES:
                counts[side] = np.sum([f.arrays[f"{name} {side}"] for f in by_seed], axis=0)
            panels.setdefault(title, (name, counts))
    return dict(sorted(panels.items(), key=lambda panel: panel[1][0] == "score"))


def _quantiles_table(rows: Mapping[str, Mapping[str, tuple[str, Counts]]]) -> Table:
    """Tabulate three points of every cumulative curve."""
    columns = [words("defense"), words("number")]
    columns += [numbers(f"{LEGEND[side]}: {name}") for side, name in product(SIDES, QUANTILES)]
    body: list[list[Content]] = []
    for defense, panels in rows.items():
        for title, (name, counts) in panels.items():
            points = product(counts.values(), QUANTILES.values())
            means = [Value(mean=quantile(EDGES[name], *point)) for point in points]
            body.append([defense, title, *means])
    caption = (
        ": values below which 10, 50 and 90 % of them lie, by 40 bins and all seeds together; "
        "scores in standard deviations from the mean of the target's non-members from outside"
    )
    return table("Quantiles of members and non-members", caption, columns, body)


def quantile(edges: ndarray, counts: ndarray, share: float) -> float | None:
    """Return the value below which a share of the samples lies, linear within a bin; None without
    samples.
    """
    if not counts.sum():
        return None
    return float(np.interp(share, np.r_[0, counts.cumsum() / counts.sum()], edges))


def _draw(
    section: Section,
    rows: Mapping[str, Mapping[str, tuple[str, Counts]]],
    oracle: bool,
    cumulative: bool,
    style: Style,
) -> Canvas:
    """Draw shares of each side, all seeds together; a column a number, a row a defense."""
    titles = list(dict.fromkeys(title for panels in rows.values() for title in panels))
    figure = style.new_figure(2.5 * len(titles) + 0.8, 1.5 * len(rows) + 1.2)
    axes = figure.subplots(len(rows), len(titles), squeeze=False, sharex="col", sharey=cumulative)
    for (defense, panels), of_row in zip(rows.items(), axes, strict=True):
        for title, axis in zip(titles, of_row, strict=True):
            if title in panels:
                _panel(axis, style, *panels[title], cumulative)
        of_row[0].set_ylabel(style.literal(defense, 24), fontsize=8)
    for title, axis in zip(titles, axes[-1], strict=True):
        name, low, high = _range_of([panels[title] for panels in rows.values() if title in panels])
        unit = ", deviations" if name == "score" else ""
        axis.set(xlim=(low, high))
        axis.set_xlabel(style.literal(title, 40) + unit, fontsize=8)
    heading = "Members and non-members"
    if titles[0] in EDGES:
        models = "all clients' models, last audited round"
        if oracle:
            models = "the model that separates members best (oracle)"
        heading += f" under {models}"
    return framed(figure, axes[0][0], style, section, heading)


def _range_of(panels: list[tuple[str, Counts]]) -> tuple[str, float, float]:
    """Name of a column's number, and the ends of the bins that any of its panels fills."""
    name = panels[0][0]
    totals = np.sum([side for _, counts in panels for side in counts.values()], axis=0)
    filled = np.flatnonzero(totals)
    return name, EDGES[name][filled[0]], EDGES[name][filled[-1] + 1]


def _panel(axis: Axes, style: Style, name: str, counts: Counts, cumulative: bool) -> None:
    """Draw the sides by one number: histograms, or the share up to each value."""
    edges = EDGES[name]
    for i, (side, number) in enumerate(counts.items()):
        if not number.sum():
            continue
        shares = number / number.sum()
        line = {"lw": 1.1, "label": LEGEND[side], **stroke(style, i)}
        if cumulative:
            axis.plot(edges, np.r_[0, shares.cumsum()], **line)
            continue
        axis.stairs(shares, edges, **line)
        if side != "inside":  # two areas at most, or the overlap cannot be read
            axis.stairs(shares, edges, color=style.colour(i), fill=True, alpha=0.3)
    if edges[0] > 0:
        axis.set_xscale("log")
    axis.tick_params(labelsize=7)
    if not cumulative:
        axis.set_yticks([])
